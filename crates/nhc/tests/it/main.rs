//! Tests of the scheduler on surfaces of cost that are known.

mod scheduler;
