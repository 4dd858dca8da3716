//! A volume against an array of sectors, while both of its devices fail.

mod admission;
mod ahead;
mod backing;
mod budget;
mod case;
mod drawn;
mod model;
mod rig;
mod rules;
mod scans;
mod split;
mod threads;
mod write_back;
mod write_back_crashes;
mod write_back_failures;
