//! The door from outside: its judgement by requests and responses in tables, without a socket or a clock; and the door itself over sockets.

mod access_log;
mod any_bytes;
mod collapsed;
mod common;
mod directives;
mod http2;
mod life;
mod origin;
mod passed;
mod rfc9111;
mod rule_tables;
mod second_opinion;
mod stored;
mod stored_heads;
mod table;
mod validated;
mod variants;
mod wire;
