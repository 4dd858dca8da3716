//! stats: memcached's names where they mean the same.

use super::{Executor, Output, VERSION};
use crate::server::Listen;
use pumice_device::Device;
use std::fmt::Display;

impl<D: Device + Clone> Executor<D> {
    pub(super) fn statistics(&self, what: Option<&[u8]>, output: &mut Output<D::Buf>) {
        let mut lines = Lines { output };
        match what {
            None => self.general(&mut lines),
            Some(b"settings") => self.settings(&mut lines),
            Some(b"items") => {
                let stats = self.cache.stats();
                lines.stat("items:1:number", stats.resident_entries);
                lines.stat("items:1:mem_requested", stats.resident_bytes);
                lines.stat("items:1:evicted", stats.books.evicted.0);
            }
            Some(b"slabs") => {
                lines.stat("active_slabs", 0);
                lines.stat("total_malloced", self.shared.config.limit_maxbytes);
            }
            Some(b"sizes") => lines.stat("sizes_status", "disabled"),
            // memcached's debugging commands, answered so that tools that ask for them go on.
            Some(b"cachedump" | b"conns") => {}
            Some(b"reset") => {
                self.shared.stats.reset();
                output.text("RESET\r\n");
                return;
            }
            Some(_) => {
                output.text(crate::parse::replies::ERROR);
                return;
            }
        }
        output.text("END\r\n");
    }

    fn general(&self, lines: &mut Lines<'_, D::Buf>) {
        let shared = &self.shared;
        let door = &shared.stats;
        let counts = door.counts_since_reset();
        let cache = self.cache.stats();
        lines.stat("pid", std::process::id());
        lines.stat("uptime", shared.started.elapsed().as_secs());
        lines.stat("time", self.now_secs());
        lines.stat("version", VERSION);
        lines.stat("pointer_size", usize::BITS);
        lines.stat("max_connections", shared.config.max_connections);
        lines.stat("curr_connections", door.curr_connections());
        lines.stat("total_connections", door.total_connections());
        lines.stat("rejected_connections", door.rejected_connections());
        for (name, count) in counts.iter() {
            lines.stat(name, count);
        }
        lines.stat("auth_cmds", 0);
        lines.stat("auth_errors", 0);
        lines.stat("limit_maxbytes", shared.config.limit_maxbytes);
        lines.stat("accepting_conns", 1);
        lines.stat("threads", door.workers());
        lines.stat("curr_items", cache.resident_entries);
        lines.stat("bytes", cache.resident_bytes);
        lines.stat("evictions", cache.books.evicted.0);
        // Ours alone: the flash device failed, and DRAM serves alone.
        lines.stat("flash_out", u8::from(cache.flash_out));
    }

    fn settings(&self, lines: &mut Lines<'_, D::Buf>) {
        let config = &self.shared.config;
        let port = config.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix { .. } => None,
        });
        let socket = config.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(_) => None,
            Listen::Unix { path, .. } => Some(path),
        });
        lines.stat("maxbytes", config.limit_maxbytes);
        lines.stat("maxconns", config.max_connections);
        lines.stat("tcpport", port.map_or(0, |address| address.port()));
        lines.stat("udpport", 0);
        match port {
            Some(address) => lines.stat("inter", address.ip()),
            None => lines.stat("inter", "NULL"),
        }
        lines.stat("verbosity", 0);
        lines.stat("oldest", 0);
        lines.stat("evictions", "on");
        match socket {
            Some(path) => lines.stat("domain_socket", path.display()),
            None => lines.stat("domain_socket", "NULL"),
        }
        lines.stat("shutdown_command", "no");
        lines.stat("num_threads", config.workers);
        lines.stat("cas_enabled", "yes");
        lines.stat("tcp_backlog", config.backlog);
        lines.stat("binding_protocol", "ascii");
        lines.stat("auth_enabled_sasl", "no");
        lines.stat("auth_enabled_ascii", "no");
        lines.stat("item_size_max", config.limits.max_value_bytes);
        lines.stat("maxconns_fast", "yes");
        lines.stat("flush_enabled", "yes");
        lines.stat("dump_enabled", "no");
        lines.stat("idle_timeout", 0);
    }
}

struct Lines<'o, B: pumice_device::Buffer> {
    output: &'o mut Output<B>,
}

impl<B: pumice_device::Buffer> Lines<'_, B> {
    fn stat(&mut self, name: &str, value: impl Display) {
        self.output.text(format!("STAT {name} {value}\r\n"));
    }
}
