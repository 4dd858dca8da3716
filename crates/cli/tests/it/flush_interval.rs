//! A server that is killed while it is quiet: what had been set for longer than the flush interval is there again.

use crate::common::{Server, name, place, pumice, value};

const KEYS: u32 = 50;

#[test]
fn a_quiet_server_that_is_killed_loses_nothing_older_than_the_interval() {
    for index in ["full", "cascade"] {
        let directory = place();
        let flags = format!("--layout ripq --index {index} --flush-interval 1");
        let start = || Server::start_with(directory.path(), &["--layout", "--index"], &flags).unwrap();
        let server = start();
        let mut client = server.client();
        for key in 0..KEYS {
            client.set(&name(key), &value(key, 1)[..100]);
        }
        server.wait_until_written();
        assert!(server.figure("pumice_flash_prefix_writes_total") > 0);
        for key in 0..KEYS / 2 {
            assert!(client.delete(&name(key)));
        }
        drop(client);
        server.kill();
        let inspected = pumice(directory.path(), "inspect c.flash --json").stdout;
        let report: serde_json::Value = serde_json::from_slice(&inspected).unwrap();
        assert!(report["blocks"]["prefixes"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(report["inconsistencies"], 0, "{report}");
        let server = start();
        assert!(
            server.recovered("after a stop that was not clean"),
            "{:?}",
            server.said
        );
        let mut client = server.client();
        for key in 0..KEYS {
            let expected = (key >= KEYS / 2).then(|| value(key, 1)[..100].to_vec());
            assert_eq!(client.get(&name(key)), expected, "index {index}: key {key}");
        }
    }
}
