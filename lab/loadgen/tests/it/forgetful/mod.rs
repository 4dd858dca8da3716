//! A small memcached server with all that a history check asks for, which restarts, forgets, and may break a rule.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The rule that a server breaks, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// None.
    None,
    /// A get returns the newest value.
    Newest,
    /// What was deleted is gone.
    Deleted,
    /// What has expired is gone.
    Expired,
    /// A cas replaces only what it names.
    Unique,
    /// A piece is appended once.
    Once,
    /// An increment is not lost.
    Counted,
    /// A stale object is won by one client.
    OneWinner,
    /// A value comes with its flags.
    Flags,
    /// A value is its key's own.
    Own,
    /// After a restart nothing is older than before.
    Restart,
    /// flush_all removes everything.
    Flush,
}

#[derive(Clone)]
struct Item {
    value: Vec<u8>,
    flags: String,
    unique: u64,
    expires: Option<Instant>,
    marks: u8,
}

#[derive(Default)]
struct Store {
    items: HashMap<Vec<u8>, Item>,
    former: HashMap<Vec<u8>, Item>,
    snapshot: HashMap<Vec<u8>, Item>,
    uniques: u64,
    occasions: u64,
}

pub struct Server {
    store: Mutex<Store>,
    broken: Rule,
    pid: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

fn number<T: std::str::FromStr>(word: &[u8]) -> T {
    let Ok(number) = std::str::from_utf8(word).unwrap().parse() else {
        panic!("{}", word.escape_ascii());
    };
    number
}

/// Starts a server; it ends with the process.
pub fn start(broken: Rule) -> (Arc<Server>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server {
        store: Mutex::default(),
        broken,
        pid: AtomicU64::new(1),
        connections: Mutex::default(),
    });
    let shared = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&shared);
            server
                .connections
                .lock()
                .unwrap()
                .push(stream.try_clone().unwrap());
            // A client that goes away ends its connection.
            thread::spawn(move || server.serve(stream));
        }
    });
    (server, address)
}

impl Server {
    /// Another process with the same objects, but for some that are lost.
    pub fn restart(&self) {
        let mut connections = self.connections.lock().unwrap();
        let mut store = self.store.lock().unwrap();
        self.pid.fetch_add(1, Relaxed);
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        if self.broken == Rule::Restart {
            // What was there at the restart before.
            let items = std::mem::take(&mut store.items);
            store.items = std::mem::replace(&mut store.snapshot, items);
        }
        let mut kept = 0u32;
        store.items.retain(|_, _| {
            kept += 1;
            !kept.is_multiple_of(5)
        });
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let pid = self.pid.load(Relaxed);
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let words: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == b' ').collect();
            let length = match words[0] {
                b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => Some(words[4]),
                b"ms" => Some(words[2]),
                _ => None,
            };
            let mut data = Vec::new();
            if let Some(length) = length {
                data.resize(number::<usize>(length) + 2, 0);
                reader.read_exact(&mut data)?;
                data.truncate(data.len() - 2);
            }
            let mut reply = Vec::new();
            {
                let mut store = self.store.lock().unwrap();
                // A process that is gone does nothing any more.
                if self.pid.load(Relaxed) != pid {
                    return Ok(());
                }
                if words[0] == b"stats" {
                    reply = format!("STAT pid {pid}\r\nEND\r\n").into_bytes();
                } else {
                    store.execute(self.broken, &words, &data, &mut reply);
                }
            }
            stream.write_all(&reply)?;
        }
    }
}

impl Store {
    /// Every so many chances to break the rule it is broken.
    fn breaks(&mut self, broken: Rule, rule: Rule) -> bool {
        self.occasions += u64::from(broken == rule);
        broken == rule && self.occasions.is_multiple_of(10)
    }

    fn put(&mut self, key: &[u8], mut item: Item) {
        self.uniques += 1;
        item.unique = self.uniques;
        if let Some(former) = self.items.insert(key.to_vec(), item) {
            self.former.insert(key.to_vec(), former);
        }
    }

    fn find(&mut self, broken: Rule, key: &[u8]) -> Option<Item> {
        let item = self.items.get(key)?.clone();
        let is_past = item.expires.is_some_and(|expires| expires <= Instant::now());
        if is_past && broken != Rule::Expired {
            self.items.remove(key);
            return None;
        }
        Some(item)
    }

    fn read(&mut self, broken: Rule, key: &[u8]) -> Option<Item> {
        let mut item = self.find(broken, key)?;
        if self.breaks(broken, Rule::Newest)
            && let Some(former) = self.former.get(key)
        {
            return Some(former.clone());
        }
        if self.breaks(broken, Rule::Own)
            && let Some(other) = self.items.values().next()
        {
            return Some(other.clone());
        }
        if self.breaks(broken, Rule::Flags) {
            item.flags = "5".into();
        }
        Some(item)
    }

    fn execute(&mut self, broken: Rule, words: &[&[u8]], data: &[u8], reply: &mut Vec<u8>) {
        let ttl = |word: &[u8]| match number::<i64>(word) {
            0 => None,
            seconds => Some(Instant::now() + Duration::from_secs(seconds.max(0) as u64)),
        };
        let text = |word: &[u8]| String::from_utf8(word.to_vec()).unwrap();
        let value = |reply: &mut Vec<u8>, key: &[u8], item: &Item, unique: bool| {
            let unique = if unique {
                format!(" {}", item.unique)
            } else {
                String::new()
            };
            let head = format!(
                "VALUE {} {} {}{unique}\r\n",
                text(key),
                item.flags,
                item.value.len()
            );
            reply.extend_from_slice(head.as_bytes());
            reply.extend_from_slice(&item.value);
            reply.extend_from_slice(b"\r\n");
        };
        let mut said: &[u8] = match words[0] {
            b"get" | b"gets" => {
                for key in &words[1..] {
                    if let Some(item) = self.read(broken, key) {
                        value(reply, key, &item, words[0] == b"gets");
                    }
                }
                b"END"
            }
            b"gat" => {
                if let Some(item) = self.read(broken, words[2]) {
                    value(reply, words[2], &item, false);
                    if let Some(item) = self.items.get_mut(words[2]) {
                        item.expires = ttl(words[1]);
                    }
                }
                b"END"
            }
            b"flush_all" => {
                if broken != Rule::Flush {
                    self.items.clear();
                }
                b"OK"
            }
            _ => b"",
        };
        if said.is_empty() {
            let key = words[1];
            let found = self.find(broken, key);
            let item = |flags: &[u8], expires, value: &[u8]| Item {
                value: value.to_vec(),
                flags: text(flags),
                unique: 0,
                expires,
                marks: 0,
            };
            said = match (words[0], found) {
                (b"set" | b"add", None) | (b"set" | b"replace", Some(_)) => {
                    self.put(key, item(words[2], ttl(words[3]), data));
                    b"STORED"
                }
                (b"add" | b"replace", _) | (b"append" | b"prepend", None) => b"NOT_STORED",
                (b"ms", _) => {
                    self.put(key, item(&words[3][1..], ttl(&words[4][1..]), data));
                    b"HD"
                }
                (b"cas" | b"touch" | b"delete" | b"incr", None) => b"NOT_FOUND",
                (b"cas", Some(old)) => {
                    if old.unique == number::<u64>(words[5]) || self.breaks(broken, Rule::Unique) {
                        self.put(key, item(words[2], ttl(words[3]), data));
                        b"STORED"
                    } else {
                        b"EXISTS"
                    }
                }
                (word @ (b"append" | b"prepend"), Some(mut old)) => {
                    for _ in 0..=u64::from(self.breaks(broken, Rule::Once)) {
                        old.value = if word == b"append" {
                            [&old.value[..], data].concat()
                        } else {
                            [data, &old.value[..]].concat()
                        };
                    }
                    old.marks = 0;
                    self.put(key, old);
                    b"STORED"
                }
                (b"incr", Some(mut old)) => {
                    let sum = number::<u64>(&old.value) + number::<u64>(words[2]);
                    old.value = sum.to_string().into_bytes();
                    reply.extend_from_slice(&old.value);
                    if !self.breaks(broken, Rule::Counted) {
                        self.put(key, old);
                    }
                    b""
                }
                (b"touch", Some(_)) => {
                    if words[2] == b"-1" {
                        self.items.remove(key);
                    } else {
                        self.items.get_mut(key).unwrap().expires = ttl(words[2]);
                    }
                    b"TOUCHED"
                }
                (b"delete", Some(_)) => {
                    if !self.breaks(broken, Rule::Deleted) {
                        self.items.remove(key);
                    }
                    b"DELETED"
                }
                (b"mg", None) => b"EN",
                (b"md", None) => b"NF",
                (b"md", Some(_)) if words.len() == 2 => {
                    self.items.remove(key);
                    b"HD"
                }
                (b"md", Some(_)) => {
                    let item = self.items.get_mut(key).unwrap();
                    item.marks = 1;
                    if let Some(word) = words.get(3) {
                        item.expires = ttl(&word[1..]);
                    }
                    b"HD"
                }
                (b"mg", Some(item)) => {
                    let head = format!("VA {} f{} c{}", item.value.len(), item.flags, item.unique);
                    reply.extend_from_slice(head.as_bytes());
                    let wins = item.marks == 1 || (item.marks == 3 && self.breaks(broken, Rule::OneWinner));
                    let marks = match item.marks {
                        1 => " W X",
                        3 if wins => " W X",
                        3 => " X Z",
                        _ => "",
                    };
                    reply.extend_from_slice(marks.as_bytes());
                    reply.extend_from_slice(b"\r\n");
                    reply.extend_from_slice(&item.value);
                    if wins {
                        self.items.get_mut(key).unwrap().marks = 3;
                    }
                    b""
                }
                (word, _) => panic!("{}", word.escape_ascii()),
            };
        }
        reply.extend_from_slice(said);
        reply.extend_from_slice(b"\r\n");
    }
}
