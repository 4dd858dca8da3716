//! The simulated device does what its plan says.

mod faulty;
