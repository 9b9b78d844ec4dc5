use std::sync::Arc;

use super::scene::USERS;
use super::workload::Workload;

/// Which user calls next.
#[derive(Clone, Debug)]
pub(super) enum Users {
    /// Each of so many as often as any other.
    Even(u32),
    /// The n-th in proportion to n^-1.1; holds the share of calls that the first n make together.
    Skewed(Arc<[f64]>),
}

impl Users {
    pub(super) fn of(workload: Workload) -> Self {
        match workload {
            Workload::Zipf => Self::Skewed(zipf()),
            Workload::Uniform | Workload::Hot | Workload::Refused | Workload::Three => Self::Even(USERS),
        }
    }

    pub(super) fn draw(&self, lots: &mut Lots) -> u32 {
        match self {
            Self::Even(users) => lots.below(*users),
            Self::Skewed(shares) => {
                let share = lots.share();
                #[expect(clippy::cast_possible_truncation, reason = "at most USERS, and then the last")]
                let user = shares.partition_point(|first| *first <= share) as u32;
                user.min(USERS - 1)
            }
        }
    }
}

fn zipf() -> Arc<[f64]> {
    let weights = (1..=USERS).map(|rank| f64::from(rank).powf(-1.1));
    let total: f64 = weights.clone().sum();
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        })
        .collect()
}

/// Lots that fall in the same way in every run: `SplitMix64` (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(super) struct Lots(u64);

impl Lots {
    /// Other lots for each caller.
    pub(super) fn new(caller: usize) -> Self {
        Self(caller as u64)
    }

    /// A whole number below so many.
    pub(super) fn below(&mut self, many: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than there are")]
        let lot = (self.share() * f64::from(many)) as u32;
        lot
    }

    /// At least 0 and less than 1.
    pub(super) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        f64::from((mixed >> 32) as u32) / 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(workload: Workload) -> Vec<u32> {
        let (users, mut lots) = (Users::of(workload), Lots::new(7));
        let mut counts = vec![0; USERS as usize];
        for _ in 0..1_000_000 {
            counts[users.draw(&mut lots) as usize] += 1;
        }
        counts
    }

    #[test]
    fn even_users_call_equally_often() {
        let counts = counts(Workload::Uniform);
        // A hundred calls each; seven standard deviations.
        assert!(counts.iter().all(|count| (30..=170).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_skewed_user_calls_as_often_as_its_rank_says() {
        let counts = counts(Workload::Zipf);
        for rank in [2_u32, 10, 100] {
            let expected = f64::from(counts[0]) * f64::from(rank).powf(-1.1);
            let ratio = f64::from(counts[rank as usize - 1]) / expected;
            assert!((0.8..1.2).contains(&ratio), "rank {rank}: {ratio}");
        }
    }
}
