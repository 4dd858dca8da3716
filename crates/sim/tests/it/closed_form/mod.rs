//! Published write amplification of log-structured flash under uniform random writes of single pages.
//!
//! With α the physical over the logical pages, a page is still valid with probability exp(−t / logical pages) after t
//! more writes of the host. Cleaning superblocks in the order in which they were written gives, with Lambert's W,
//! A = α / (α + W(−α e^−α)): Xiang and Kurkoski, "An Improved Analytic Expression for Write Amplification in NAND
//! Flash" (arXiv 1110.4245), whose example is 2.36 for α = 1.3 against 2.35 simulated; and Desnoyers, "Analytic Modeling
//! of SSD Write Performance" (SYSTOR 2012). The latter derives greedy cleaning with N pages to a superblock: the same
//! with k α in place of α, over k = 1 + 1/(2N). With large N both agree.

/// Lambert's W on its main branch, for arguments in (−1/e, 0): W e^W = x.
fn lambert_w(x: f64) -> f64 {
    // The series around the branch point at −1/e, then Newton's steps.
    let p = (2.0 * (std::f64::consts::E * x + 1.0)).max(0.0).sqrt();
    let mut w = -1.0 + p - p * p / 3.0;
    for _ in 0..100 {
        let e = w.exp();
        let step = (w * e - x) / (e * (w + 1.0));
        w -= step;
        if step.abs() < 1e-14 {
            break;
        }
    }
    w
}

/// Write amplification where superblocks are cleaned in the order in which they were written, for a share of
/// logical in physical pages inside (0, 1).
pub fn lru_amplification(utilisation: f64) -> f64 {
    let alpha = 1.0 / utilisation;
    alpha / (alpha + lambert_w(-alpha * (-alpha).exp()))
}

/// Write amplification of greedy cleaning with `pages` to a superblock, for a share of logical in physical pages inside
/// (0, 1).
pub fn greedy_amplification(utilisation: f64, pages: u32) -> f64 {
    let k = 1.0 + 0.5 / f64::from(pages);
    lru_amplification(utilisation / k) / k
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lambert_w_inverts() {
        for w in [-0.99, -0.9, -0.5, -0.2, -0.01, -1e-6f64] {
            let found = lambert_w(w * w.exp());
            assert!((found - w).abs() < 1e-9, "{found} for {w}");
        }
    }

    #[test]
    fn the_published_example() {
        assert!((lru_amplification(1.0 / 1.3) - 2.36).abs() < 0.005);
    }

    #[test]
    fn cleaning_in_order_is_its_own_fixed_point() {
        for utilisation in [0.5, 0.7, 0.9, 0.97] {
            let a = lru_amplification(utilisation);
            let valid = 1.0 - 1.0 / a;
            assert!((valid - (-1.0 / (utilisation * a)).exp()).abs() < 1e-9);
            assert!(greedy_amplification(utilisation, 8) < a);
            assert!((greedy_amplification(utilisation, 1 << 20) / a - 1.0).abs() < 1e-4);
        }
    }
}
