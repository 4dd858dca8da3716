//! A small server of the memcached text protocol that can misbehave.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a server does wrong, at every n-th request that gives the occasion.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(dead_code, reason = "not every test has every fault")]
pub enum Wrong {
    /// Nothing.
    Nothing,
    /// Another key's value.
    Foreign(u64),
    /// The first value that the key ever had.
    Old(u64),
    /// A value with a byte changed.
    Corrupt(u64),
    /// A value without its last byte.
    Short(u64),
    /// A delete that is acknowledged and not done.
    NoDelete(u64),
    /// A connection that ends instead of a reply.
    Drop(u64),
    /// `SERVER_ERROR` for a set.
    ServerError(u64),
    /// Words that are no reply.
    Nonsense(u64),
    /// This request, counted from 1, is answered late, and everything behind it.
    Stall(u64, Duration),
    /// Every request takes this long.
    Slow(Duration),
    /// This request, counted from 1, is never answered.
    Silent(u64),
    /// Replies trickle out in pieces of so many bytes.
    Pieces(usize),
}

#[derive(Default)]
struct Store {
    values: HashMap<Vec<u8>, (Vec<u8>, u64)>,
    first: HashMap<Vec<u8>, Vec<u8>>,
    writes: u64,
}

struct Server {
    store: Mutex<Store>,
    wrong: Wrong,
    occasions: AtomicU64,
}

/// Starts a server; it ends with the process.
pub fn start(wrong: Wrong) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server {
        store: Mutex::default(),
        wrong,
        occasions: AtomicU64::new(0),
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let server = Arc::clone(&server);
            // A client that goes away ends its connection.
            thread::spawn(move || stream.and_then(|stream| server.serve(&stream)));
        }
    });
    address
}

impl Server {
    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        let mut writer = BufWriter::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let words: Vec<Vec<u8>> = line
                .trim_ascii_end()
                .split(|byte| *byte == b' ')
                .map(<[u8]>::to_vec)
                .collect();
            let mut data = Vec::new();
            if matches!(&words[0][..], b"set" | b"cas") {
                let length: usize = std::str::from_utf8(&words[4]).unwrap().parse().unwrap();
                data.resize(length + 2, 0);
                reader.read_exact(&mut data)?;
                data.truncate(length);
            }
            match self.wrong {
                Wrong::Drop(every) if self.is_time(every) => return Ok(()),
                Wrong::Stall(number, time) if self.is_number(number) => thread::sleep(time),
                Wrong::Slow(time) => thread::sleep(time),
                Wrong::Silent(number) if self.is_number(number) => loop {
                    thread::park();
                },
                _ => {}
            }
            let mut reply = Vec::new();
            self.execute(&words, &data, &mut reply);
            match self.wrong {
                Wrong::Pieces(bytes) => {
                    for piece in reply.chunks(bytes) {
                        writer.write_all(piece)?;
                        writer.flush()?;
                    }
                }
                _ => writer.write_all(&reply)?,
            }
            if reader.buffer().is_empty() {
                writer.flush()?;
            }
        }
    }

    fn is_time(&self, every: u64) -> bool {
        (self.occasions.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every)
    }

    fn is_number(&self, number: u64) -> bool {
        self.occasions.fetch_add(1, Ordering::Relaxed) + 1 == number
    }

    fn execute(&self, words: &[Vec<u8>], data: &[u8], reply: &mut Vec<u8>) {
        let mut store = self.store.lock().unwrap();
        match &words[0][..] {
            b"get" | b"gets" => {
                for key in &words[1..] {
                    self.get(&store, key, words[0] == b"gets", reply);
                }
                reply.extend_from_slice(b"END\r\n");
                if matches!(self.wrong, Wrong::Nonsense(every) if self.is_time(every)) {
                    *reply = b"WHAT?\r\n".to_vec();
                }
            }
            b"set" => {
                if matches!(self.wrong, Wrong::ServerError(every) if self.is_time(every)) {
                    return reply.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n");
                }
                store.set(&words[1], data);
                reply.extend_from_slice(b"STORED\r\n");
            }
            b"cas" => {
                let unique: u64 = std::str::from_utf8(&words[5]).unwrap().parse().unwrap();
                let said: &[u8] = match store.values.get(&words[1]) {
                    None => b"NOT_FOUND\r\n",
                    Some((_, now)) if *now != unique => b"EXISTS\r\n",
                    Some(_) => {
                        store.set(&words[1], data);
                        b"STORED\r\n"
                    }
                };
                reply.extend_from_slice(said);
            }
            b"delete" => {
                if !matches!(self.wrong, Wrong::NoDelete(every) if self.is_time(every)) {
                    store.values.remove(&words[1]);
                }
                reply.extend_from_slice(b"DELETED\r\n");
            }
            _ => reply.extend_from_slice(b"ERROR\r\n"),
        }
    }

    fn get(&self, store: &Store, key: &Vec<u8>, with_cas: bool, reply: &mut Vec<u8>) {
        let Some((value, unique)) = store.values.get(key) else {
            return;
        };
        let mut value = value.clone();
        match self.wrong {
            Wrong::Foreign(every) if self.is_time(every) => {
                if let Some((_, (other, _))) = store.values.iter().find(|(other, _)| *other != key) {
                    value.clone_from(other);
                }
            }
            Wrong::Old(every) if self.is_time(every) => value.clone_from(&store.first[key]),
            Wrong::Corrupt(every) if self.is_time(every) => {
                let at = value.len() - 1;
                value[at] ^= 1;
            }
            Wrong::Short(every) if self.is_time(every) => value.truncate(value.len() - 1),
            _ => {}
        }
        reply.extend_from_slice(b"VALUE ");
        reply.extend_from_slice(key);
        let cas = if with_cas {
            format!(" {unique}")
        } else {
            String::new()
        };
        reply.extend_from_slice(format!(" 0 {}{cas}\r\n", value.len()).as_bytes());
        reply.extend_from_slice(&value);
        reply.extend_from_slice(b"\r\n");
    }
}

impl Store {
    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.writes += 1;
        self.first.entry(key.to_vec()).or_insert_with(|| value.to_vec());
        self.values.insert(key.to_vec(), (value.to_vec(), self.writes));
    }
}
