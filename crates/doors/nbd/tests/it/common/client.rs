//! A client that knows the protocol by its numbers, not by the door's code.

use super::PATIENCE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

pub struct Client {
    socket: Box<dyn Socket>,
    is_structured: bool,
    /// Replies of which some chunks came.
    begun: Vec<Got>,
}

/// Structured replies and `base:allocation`.
pub const NEGOTIATE_ALL: bool = true;

/// A reply, with all its chunks.
#[derive(Debug, PartialEq, Eq)]
pub struct Got {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
    /// Of a status: lengths and states.
    pub extents: Vec<(u32, u32)>,
    pub chunks: usize,
}

impl Client {
    pub fn tcp(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("the server listens");
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self::new(Box::new(socket))
    }

    pub fn unix(path: &Path) -> Self {
        let socket = UnixStream::connect(path).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::new(Box::new(socket))
    }

    fn new(socket: Box<dyn Socket>) -> Self {
        Self {
            socket,
            is_structured: false,
            begun: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the server receives");
    }

    pub fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.receive(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.receive(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.receive(8).try_into().unwrap())
    }

    /// What comes until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            // It was closed while more was on its way to it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection stays open: {error}"),
        }
        rest
    }

    /// Greets, and says that it knows the fixed newstyle.
    pub fn greet(&mut self) {
        assert_eq!(self.receive(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&[0, 0, 0, 3]);
    }

    pub fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(b"IHAVEOPT");
        self.send(&number.to_be_bytes());
        self.send(&u32::try_from(data.len()).unwrap().to_be_bytes());
        self.send(data);
        self.option_replies(number)
    }

    pub fn option_replies(&mut self, number: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.u64(), 0x3_e889_0455_65a9);
            assert_eq!(self.u32(), number);
            let (kind, length) = (self.u32(), self.u32());
            let data = self.receive(length as usize);
            replies.push((kind, data));
            if kind == 1 || kind > 1 << 31 {
                return replies;
            }
        }
    }

    /// Chooses an export; returns its size and flags.
    pub fn negotiate(&mut self, name: &str, is_structured: bool) -> (u64, u16) {
        self.greet();
        let mut named = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        named.extend_from_slice(name.as_bytes());
        self.is_structured = is_structured;
        if is_structured {
            assert_eq!(self.option(8, b""), [(1, vec![])]);
            let query = [&named[..], &[0, 0, 0, 1, 0, 0, 0, 15], b"base:allocation"].concat();
            let context = [&[0, 0, 0, 1][..], b"base:allocation"].concat();
            assert_eq!(self.option(10, &query), [(4, context), (1, vec![])]);
        }
        let replies = self.option(7, &[&named[..], &[0, 0]].concat());
        let [(3, info), (1, _)] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert_eq!(info[..2], [0, 0]);
        let size = u64::from_be_bytes(info[2..10].try_into().unwrap());
        (size, u16::from_be_bytes(info[10..].try_into().unwrap()))
    }

    /// A request as bytes.
    pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes
    }

    pub fn ask(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&Self::request(kind, flags, cookie, offset, length));
    }

    /// Asks and waits for the reply.
    pub fn answer(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Got {
        self.ask(kind, flags, 77, offset, length);
        let got = self.reply(length as usize);
        assert_eq!(got.cookie, 77);
        got
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let got = self.answer(0, 0, offset, length);
        assert_eq!((got.error, got.data.len()), (0, length as usize));
        got.data
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let length = u32::try_from(data.len()).unwrap();
        self.ask(1, flags, 78, offset, length);
        self.send(data);
        let got = self.reply(0);
        assert_eq!((got.cookie, got.chunks), (78, 0));
        got.error
    }

    /// The next reply that is whole, which has so much data where it is simple and there is no error.
    pub fn reply(&mut self, simple_data: usize) -> Got {
        loop {
            let magic = self.u32();
            if magic == 0x6744_6698 {
                let (error, cookie) = (self.u32(), self.u64());
                let has_data = error == 0 && !self.is_structured;
                return Got {
                    error,
                    data: self.receive(if has_data { simple_data } else { 0 }),
                    ..Got::new(cookie)
                };
            }
            assert_eq!(magic, 0x668e_33ef, "{magic:#x} begins no reply");
            let (flags, kind) = (self.u16(), self.u16());
            let (cookie, length) = (self.u64(), self.u32() as usize);
            let at = self.begun.iter().position(|begun| begun.cookie == cookie);
            let mut got = at.map_or_else(|| Got::new(cookie), |at| self.begun.remove(at));
            got.chunks += 1;
            match kind {
                1 => {
                    let _offset = self.u64();
                    let data = self.receive(length - 8);
                    got.data.extend_from_slice(&data);
                }
                5 => {
                    assert_eq!(self.u32(), 1);
                    for _ in 0..length / 8 {
                        got.extents.push((self.u32(), self.u32()));
                    }
                }
                0x8001 => {
                    got.error = self.u32();
                    let text = usize::from(self.u16());
                    assert_eq!(text, length - 6);
                    String::from_utf8(self.receive(text)).expect("text");
                }
                kind => panic!("a chunk of kind {kind}"),
            }
            if flags & 1 == 1 {
                return got;
            }
            self.begun.push(got);
        }
    }
}

impl Got {
    fn new(cookie: u64) -> Self {
        Self {
            cookie,
            error: 0,
            data: Vec::new(),
            extents: Vec::new(),
            chunks: 0,
        }
    }
}
