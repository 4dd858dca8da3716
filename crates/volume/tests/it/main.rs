//! A volume against an array of sectors, while both of its devices fail.

mod ahead;
mod backing;
mod model;
mod rig;
mod rules;
mod threads;
