//! A small store on blocks, without objects, layouts or an index, under everything that `pumice-testkit` has.

mod runs;
mod toy;
