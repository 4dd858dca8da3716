//! Where a server listens.

use crate::familiar::read;
use pumice_door_memcached::Listen;
use pumice_server::objects::ServeConfig;
use pumice_server::settings::Layers;

fn listens(options: &str) -> Result<Vec<String>, String> {
    let (settings, familiar, _) = read(options)?;
    let layers = Layers::collect(settings, None).map_err(|error| error.to_string())?;
    let config = ServeConfig::resolve(&layers, &familiar.flags()).map_err(|error| error.to_string())?;
    let text = |listen| match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Tls(address) => format!("tls {address}"),
        Listen::Unix { path, mode } => format!("{} {:o}", path.display(), mode.unwrap_or(0)),
    };
    Ok(config.door.listen.into_iter().map(text).collect())
}

#[test]
fn memcached_listens_where_its_options_say() {
    assert_eq!(listens("").unwrap(), ["127.0.0.1:11211"]);
    assert_eq!(listens("-p 5").unwrap(), ["127.0.0.1:5"]);
    assert_eq!(listens("-s /s").unwrap(), ["/s 700"]);
    assert_eq!(listens("-s /s -a 666 -p 5").unwrap(), ["/s 666", "127.0.0.1:5"]);
    assert_eq!(
        listens("-l 127.0.0.2,::1 -l 127.0.0.3:7").unwrap(),
        ["127.0.0.2:11211", "[::1]:11211", "127.0.0.3:7"]
    );
    assert_eq!(listens("-l *").unwrap(), ["0.0.0.0:11211"]);
    assert_eq!(
        listens("--memcached unix:/s --unix-mode 660").unwrap(),
        ["/s 660"]
    );
    assert_eq!(listens("--memcached unix:/s").unwrap(), ["/s 700"]);
    assert!(listens("--memcached unix:/s --unix-mode 888").is_err());
    assert_eq!(
        listens("-Z -o ssl_chain_cert=/c -p 7 -l ::1,notls:127.0.0.1 -s /s").unwrap(),
        ["/s 700", "127.0.0.1:7", "tls [::1]:7"]
    );
    assert_eq!(
        listens("-Z -o ssl_chain_cert=/c,ssl_key=/k").unwrap(),
        ["tls 127.0.0.1:11211"]
    );
    assert!(listens("-Z").is_err());
    assert!(listens("-o ssl_key=/k").is_err());
    assert!(listens("-p 0").is_err());
    assert!(listens("-l no.such.host.invalid").is_err());
}

#[test]
fn addresses_need_a_port() {
    assert_eq!(listens("--memcached [::1]:5").unwrap(), ["[::1]:5"]);
    for text in ["127.0.0.1", "::1", ":5", "1.2.3.4:99999"] {
        assert!(listens(&format!("--memcached {text}")).is_err(), "{text}");
    }
}
