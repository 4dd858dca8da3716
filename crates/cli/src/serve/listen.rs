//! Where `serve` listens: what our own settings say, or memcached's options.

use super::config::{conflict, path};
use super::familiar::Familiar;
use crate::settings::{Given, Layers};
use crate::usage::usage;
use pumice_door_memcached::Listen;
use pumice_door_memcached::options::MemcachedOptions;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Where memcached is served, with TLS and without.
///
/// # Errors
/// Usage: addresses that are none, two ways to say the same, or nowhere at all.
pub fn addresses(layers: &Layers, familiar: &Familiar) -> anyhow::Result<Vec<Listen>> {
    let options = &familiar.options;
    let given = layers.memcached();
    let theirs =
        options.port.is_some() || options.socket.is_some() || !options.listen.is_empty() || options.tls;
    let mut listen = if theirs {
        conflict(&given, true, "one of -p, -s, -l and -Z")?;
        familiar_addresses(familiar)?
    } else {
        own(&given, options)?
    };
    let tls = layers.memcached_tls();
    for text in tls.list().into_iter().flatten() {
        let address = address(text, None).map_err(|what| tls.wrong(what))?;
        listen.push(Listen::Tls(address));
    }
    match listen.is_empty() {
        true => Err(given.wrong("nothing is left to listen on; --memcached-tls is not given")),
        false => Ok(listen),
    }
}

/// What our own setting says of places without TLS.
fn own(given: &Given<'_>, options: &MemcachedOptions) -> anyhow::Result<Vec<Listen>> {
    let Some(texts) = given.list() else {
        return Ok(vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 11211)))]);
    };
    if texts.is_empty() {
        return Err(given.wrong("expected at least one address"));
    }
    if texts == ["off"] {
        return Ok(Vec::new());
    }
    texts
        .into_iter()
        .map(|text| match text.strip_prefix("unix:") {
            Some("") => Err(given.wrong("expected a path after unix:")),
            Some(path) => Ok(Listen::Unix {
                path: path.into(),
                mode: options.socket_mode,
            }),
            None => address(text, None)
                .map(Listen::Tcp)
                .map_err(|what| given.wrong(what)),
        })
        .collect()
}

/// The files with the certificate and the key, which are needed where something listens with TLS, and only there.
///
/// # Errors
/// Usage: one without the other.
pub fn tls_files(
    layers: &Layers,
    options: &MemcachedOptions,
    listen: &[Listen],
) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let (certificate, key) = (layers.tls_certificate(), layers.tls_key());
    conflict(
        &certificate,
        options.tls_certificate.is_some(),
        "-o ssl_chain_cert",
    )?;
    conflict(&key, options.tls_key.is_some(), "-o ssl_key")?;
    let file = |option: &Option<PathBuf>, given| match option {
        Some(path) => Ok(Some(path.clone())),
        None => path(given),
    };
    let certificate_file = file(&options.tls_certificate, &certificate)?;
    let key_file = file(&options.tls_key, &key)?;
    let is_served = listen.iter().any(|listen| matches!(listen, Listen::Tls(_)));
    match (is_served, certificate_file, key_file) {
        (true, Some(certificate), key) => {
            let key = key.unwrap_or_else(|| certificate.clone());
            Ok(Some((certificate, key)))
        }
        (true, None, _) => Err(usage(
            "TLS needs a certificate: give --tls-certificate FILE and --tls-key FILE",
        )),
        (false, None, None) => Ok(None),
        (false, ..) => Err(usage(
            "a certificate or key is given, but nothing listens with TLS: give --memcached-tls ADDR too",
        )),
    }
}

fn familiar_addresses(familiar: &Familiar) -> anyhow::Result<Vec<Listen>> {
    let options = &familiar.options;
    let mut listen = Vec::new();
    if let Some(path) = &options.socket {
        listen.push(Listen::Unix {
            path: path.clone(),
            // As memcached has it.
            mode: Some(options.socket_mode.unwrap_or(0o700)),
        });
    }
    let tcp = match options.port {
        Some(0) => None,
        Some(port) => Some(port),
        None if options.socket.is_some() => None,
        None => Some(11211),
    };
    if let Some(port) = tcp {
        let hosts = if options.listen.is_empty() {
            vec!["127.0.0.1".to_owned()]
        } else {
            options.listen.clone()
        };
        for host in hosts {
            let (name, is_plain) = match host.strip_prefix("notls:") {
                Some(name) if options.tls => (name, true),
                _ => (&host[..], !options.tls),
            };
            let address =
                address(name, Some(port)).map_err(|what| usage(format!("option `-l {host}`: {what}")))?;
            listen.push(match is_plain {
                true => Listen::Tcp(address),
                false => Listen::Tls(address),
            });
        }
    }
    if listen.is_empty() {
        return Err(usage(
            "option `-p 0`: nothing is left to listen on; give -s PATH or another port",
        ));
    }
    Ok(listen)
}

/// A socket address by number or name; the port may be left out where there is a default.
pub fn address(text: &str, port: Option<u16>) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let expected = "expected an address with a port, such as 127.0.0.1:11211 or [::1]:11211";
    let resolve = |host: &str, port: u16| {
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot resolve {host}: {error}"))?;
        found.next().ok_or_else(|| format!("{host} has no address"))
    };
    if let Some(port) = port
        && (text.parse::<std::net::IpAddr>().is_ok() || !text.contains(':'))
    {
        return resolve(if text == "*" { "0.0.0.0" } else { text }, port);
    }
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    let port = port.parse::<u16>().map_err(|_| expected)?;
    if host.is_empty() || host.contains(':') {
        return Err(expected.to_owned());
    }
    resolve(host, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::config::ServeConfig;
    use crate::serve::split_memcached_options;

    fn listens(options: &str) -> anyhow::Result<Vec<String>> {
        let words = format!("pumice serve {options}");
        let (_, familiar) = split_memcached_options(words.split_whitespace().map(Into::into).collect())?;
        let config = ServeConfig::resolve(&Layers::default(), false, &familiar)?;
        let text = |listen| match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Tls(address) => format!("tls {address}"),
            Listen::Unix { path, mode } => format!("{} {:o}", path.display(), mode.unwrap_or(0)),
        };
        Ok(config.memcached.into_iter().map(text).collect())
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
            listens("-Z -o ssl_chain_cert=/c -p 7 -l ::1,notls:127.0.0.1 -s /s").unwrap(),
            ["/s 700", "tls [::1]:7", "127.0.0.1:7"]
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
    fn addresses_need_a_port_unless_there_is_a_default() {
        assert_eq!(address("[::1]:5", None).unwrap().to_string(), "[::1]:5");
        assert_eq!(address("127.0.0.1", Some(9)).unwrap().to_string(), "127.0.0.1:9");
        for text in ["127.0.0.1", "::1", ":5", "1.2.3.4:99999", ""] {
            assert!(address(text, None).is_err(), "{text}");
        }
    }
}
