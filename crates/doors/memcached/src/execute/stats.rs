//! stats: memcached's names where they mean the same.

use super::frame::Said;
use super::{Executor, Output, VERSION};
use crate::parse::{Frame, Status};
use pumice_device::Device;
use pumice_net::Listen;
use std::fmt::Display;

impl<D: Device + Clone> Executor<D> {
    pub(super) fn statistics(&self, what: Option<&[u8]>, frame: Option<Frame>, output: &mut Output<D::Buf>) {
        let mut lines = Lines { output, frame };
        match what {
            None => self.general(&mut lines),
            Some(b"settings") => self.settings(&mut lines),
            Some(b"items") => self.items(&mut lines),
            Some(b"slabs") => self.slabs(&mut lines),
            // Nobody counts them; memcached does not either, unless it is told to.
            Some(b"sizes") => lines.stat("sizes_status", "disabled"),
            Some(b"reset") => {
                self.shared.stats.reset();
                return lines.end("RESET\r\n");
            }
            Some(_) => {
                let text = crate::parse::replies::ERROR;
                let status = Status::NotFound;
                return output.failed(frame, Said { text, status });
            }
        }
        lines.end("END\r\n");
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
        lines.stat("pumice_version", env!("CARGO_PKG_VERSION"));
        lines.stat("pointer_size", usize::BITS);
        lines.stat("max_connections", shared.config.max_connections);
        lines.stat("curr_connections", door.curr_connections());
        lines.stat("total_connections", door.total_connections());
        lines.stat("rejected_connections", door.rejected_connections());
        for figure in counts.figures() {
            lines.stat(figure.name, figure.value);
        }
        lines.stat("limit_maxbytes", cache.dram_segment_bytes);
        lines.stat("accepting_conns", 1);
        lines.stat("threads", door.workers());
        lines.stat("curr_items", cache.resident_entries);
        lines.stat("bytes", cache.dram_used_bytes);
        lines.stat("evictions", cache.books.evicted.0);
        // Ours alone from here on: flash beside the DRAM above; whether it failed, and DRAM serves alone; what the index takes and does;
        // what has expired, and of that what nobody asked for.
        lines.stat("expired", cache.books.expired.0);
        lines.stat("expired_unasked", cache.expired_unasked);
        lines.stat("flash_limit_maxbytes", cache.flash_capacity_bytes);
        lines.stat("flash_bytes", cache.blocks_sealed * cache.block_bytes);
        lines.stat("flash_out", u8::from(cache.flash_out));
        lines.stat("index_dram_bytes", cache.index_dram_bytes);
        if cache.cascade.tier1_bytes > 0 {
            for figure in cache
                .cascade
                .figures()
                .iter()
                .chain(&cache.mapping_dram.figures())
            {
                lines.stat(&format!("cascade_{}", figure.name), figure.value);
            }
        }
    }

    /// All objects are in class 1. As memcached has it, a class without objects has no lines.
    fn items(&self, lines: &mut Lines<'_, D::Buf>) {
        let cache = self.cache.stats();
        if cache.resident_entries == 0 {
            return;
        }
        let counts = self.shared.stats.counts_since_reset();
        lines.stat("items:1:number", cache.resident_entries);
        lines.stat("items:1:mem_requested", cache.resident_bytes);
        lines.stat("items:1:evicted", cache.books.evicted.0);
        lines.stat("items:1:outofmemory", counts.store_no_memory);
    }

    fn slabs(&self, lines: &mut Lines<'_, D::Buf>) {
        let cache = self.cache.stats();
        let is_used = cache.resident_entries > 0;
        if is_used {
            let counts = self.shared.stats.counts_since_reset();
            let of_class = [
                ("get_hits", counts.get_hits),
                ("cmd_set", counts.cmd_set),
                ("delete_hits", counts.delete_hits),
                ("incr_hits", counts.incr_hits),
                ("decr_hits", counts.decr_hits),
                ("cas_hits", counts.cas_hits),
                ("cas_badval", counts.cas_badval),
                ("touch_hits", counts.touch_hits),
            ];
            for (name, count) in of_class {
                lines.stat(&format!("1:{name}"), count);
            }
        }
        lines.stat("active_slabs", u8::from(is_used));
        lines.stat(
            "total_malloced",
            cache.dram_segment_bytes + cache.block_buffer_bytes,
        );
    }

    fn settings(&self, lines: &mut Lines<'_, D::Buf>) {
        let config = &self.shared.config;
        let port = config.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(*address),
            Listen::Tls(_) | Listen::Unix { .. } => None,
        });
        let socket = config.listen.iter().find_map(|listen| match listen {
            Listen::Tcp(_) | Listen::Tls(_) => None,
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
        lines.stat("binding_protocol", "auto-negotiate");
        lines.stat(
            "auth_enabled_sasl",
            if config.auth.is_some() { "yes" } else { "no" },
        );
        match &config.auth {
            Some(auth) => lines.stat("auth_enabled_ascii", auth.path().display()),
            None => lines.stat("auth_enabled_ascii", "no"),
        }
        lines.stat("item_size_max", config.limits.max_value_bytes);
        lines.stat("maxconns_fast", "yes");
        lines.stat("flush_enabled", "yes");
        lines.stat("dump_enabled", "yes");
        lines.stat(
            "idle_timeout",
            config.idle_timeout.map_or(0, |timeout| timeout.as_secs()),
        );
        lines.stat("ssl_enabled", if config.tls.is_some() { "yes" } else { "no" });
        if let Some(tls) = &config.tls {
            let (certificate, key) = tls.paths();
            lines.stat("ssl_chain_cert", certificate.display());
            lines.stat("ssl_key", key.display());
        }
    }
}

struct Lines<'o, B: pumice_device::Buffer> {
    output: &'o mut Output<B>,
    frame: Option<Frame>,
}

impl<B: pumice_device::Buffer> Lines<'_, B> {
    fn stat(&mut self, name: &str, value: impl Display) {
        match self.frame {
            Some(frame) => self.output.told(frame, 0, name, value.to_string().as_bytes()),
            None => self.output.text(format!("STAT {name} {value}\r\n")),
        }
    }

    /// What stands behind the last: these words, or a frame without a name.
    fn end(&mut self, words: &str) {
        match self.frame {
            Some(frame) => self.output.done(frame, 0),
            None => self.output.text(words),
        }
    }
}
