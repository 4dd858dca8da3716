//! Serves a block device in memory, to try clients on: `memory ADDRESS BYTES`, ADDRESS being `unix:PATH` or `IP:PORT`.

#[path = "../tests/it/common/memory.rs"]
#[expect(dead_code, reason = "tests look into it")]
mod memory;

use memory::Memory;
use pumice_door_nbd::{Door, DoorConfig, ExportName, Listen};
use std::rc::Rc;
use tokio::sync::watch;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, bytes] = &arguments[..] else {
        panic!("usage: memory unix:PATH|IP:PORT BYTES");
    };
    let listen = match address.strip_prefix("unix:") {
        Some(path) => Listen::Unix {
            path: path.into(),
            mode: None,
        },
        None => Listen::Tcp(address.parse().expect("an address")),
    };
    let named = |name: &str| ExportName {
        name: name.to_owned(),
        description: "in memory".to_owned(),
    };
    let config = DoorConfig {
        listen: vec![listen],
        exports: vec![named("memory"), named("constant")],
        ..DoorConfig::default()
    };
    let bytes = bytes.parse().expect("a number of bytes");
    let (memory, control) = Memory::new(bytes, false);
    let (constant, _) = Memory::new(bytes, true);
    let (_keep, shutdown) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let serve = async {
        let door = Door::bind(config).expect("a free address");
        let exports = vec![Rc::new(memory), Rc::new(constant)];
        door.run_worker(0, exports, shutdown).await.expect("sockets");
    };
    tokio::task::LocalSet::new().block_on(&runtime, serve);
    drop(control);
}
