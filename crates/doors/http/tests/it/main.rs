//! The door's judgement from outside: requests and responses in tables, all without a socket or a clock.

mod any_bytes;
mod directives;
mod life;
mod origin;
mod rfc9111;
mod rule_tables;
mod second_opinion;
mod stored_heads;
mod table;
mod wire;
