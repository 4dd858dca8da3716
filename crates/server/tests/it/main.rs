//! Settings and plans, one program.

mod host;
mod lifetime;
mod objects;
mod plan;
mod settings;
mod volumes;
