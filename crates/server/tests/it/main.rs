//! Settings and plans, one program.

mod lifetime;
mod objects;
mod plan;
mod settings;
mod usage;
mod volumes;
