//! Where the server is.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `host:port`.
    Tcp(String),
    /// The path of a unix socket, written `unix:PATH` or as a path with a slash.
    Unix(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("unix:").or(text.contains('/').then_some(text));
        if let Some(path) = path {
            return if path.is_empty() {
                Err("a path must follow `unix:`".into())
            } else {
                Ok(Target::Unix(path.into()))
            };
        }
        let port = text
            .rsplit_once(':')
            .map(|(host, port)| (host.is_empty(), port.parse::<u16>()));
        match port {
            Some((false, Ok(port))) if port != 0 => Ok(Target::Tcp(text.to_owned())),
            _ => Err(format!(
                "`{text}`: expected HOST:PORT, such as 127.0.0.1:11211, or the path of a unix socket"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => f.write_str(address),
            Target::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Target {
    /// Connects; the socket does not block and, if TCP, sends at once.
    ///
    /// # Errors
    /// What the system says; for several addresses of one name, about the last.
    pub fn connect(&self, timeout: Duration) -> io::Result<OwnedFd> {
        match self {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Target::Tcp(address) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_nonblocking(true)?;
                            return Ok(stream.into());
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_paths() {
        assert_eq!("localhost:1".parse(), Ok(Target::Tcp("localhost:1".into())));
        assert_eq!("[::1]:11211".parse(), Ok(Target::Tcp("[::1]:11211".into())));
        assert_eq!("./a".parse(), Ok(Target::Unix("./a".into())));
        assert_eq!("unix:a".parse(), Ok(Target::Unix("a".into())));
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:x",
            "host:0",
            "host:65536",
            "unix:",
        ] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
