//! The door's judgement from outside: requests and responses in tables, all without a socket or a clock.

mod directives;
mod table;
mod wire;
