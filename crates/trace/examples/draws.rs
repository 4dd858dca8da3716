//! What a generated request costs: nanoseconds per request, drawn by the batch, for each workload named as an argument.
//!
//! `cargo run --release -p pumice-trace --example draws -- zipf:keys=1000000,theta=0.9,requests=20000000`

use std::time::Instant;

use pumice_trace::{Trace, TraceError, TraceOptions};

fn main() -> Result<(), TraceError> {
    for name in std::env::args().skip(1) {
        let mut reader = Trace::new(&name, TraceOptions::default())?.open()?;
        let (mut batch, mut requests, mut digest) = (Vec::new(), 0u64, 0u64);
        let start = Instant::now();
        while reader.next_batch(&mut batch)? {
            requests += batch.len() as u64;
            for request in &batch {
                digest = digest.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ request.key;
            }
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / requests.max(1) as f64;
        println!("{nanoseconds:7.1} ns  {requests} requests, digest {digest:016x}  {name}");
    }
    Ok(())
}
