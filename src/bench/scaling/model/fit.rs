//! Prices from measured points.

/// Prices, one for each kind of amount, such that the sums of amounts times prices come as near to the measured figures as
/// they can, in proportion to each figure. None is negative.
///
/// Least squares by going from price to price and setting each to the best for the others as they are, which ends where
/// no price can be bettered.
pub(super) fn prices<const N: usize>(points: &[([f64; N], f64)]) -> [f64; N] {
    // How shares of the figures, and they and the whole, go together.
    let (mut with_each, mut with_whole) = ([[0.0; N]; N], [0.0; N]);
    for (amounts, measured) in points {
        let shares = amounts.map(|amount| amount / measured);
        for (one, share) in shares.iter().enumerate() {
            with_whole[one] += share;
            for (other, and) in shares.iter().enumerate() {
                with_each[one][other] += share * and;
            }
        }
    }
    let mut prices = [0.0; N];
    for _ in 0..SWEEPS {
        for place in 0..N {
            let weight = with_each[place][place];
            if weight > 0.0 {
                let others = sum(&with_each[place], &prices) - weight * prices[place];
                prices[place] = ((with_whole[place] - others) / weight).max(0.0);
            }
        }
    }
    prices
}

/// Amounts times prices.
pub(super) fn sum<const N: usize>(amounts: &[f64; N], prices: &[f64; N]) -> f64 {
    amounts.iter().zip(prices).map(|(amount, price)| amount * price).sum()
}

/// Enough for a handful of prices, even where amounts grow together.
const SWEEPS: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_prices_that_were_paid() {
        let paid = [120.0, 7.0, 0.0];
        let points = [[1.0, 1.0, 0.0], [1.0, 50.0, 3.0], [1.0, 4.0, 9.0], [1.0, 16.0, 1.0]]
            .map(|amounts| (amounts, sum(&amounts, &paid)));
        for (found, paid) in prices(&points).into_iter().zip(paid) {
            assert!((found - paid).abs() < 1e-3, "{found} instead of {paid}");
        }
    }

    #[test]
    fn no_price_is_negative_and_what_nobody_bought_costs_nothing() {
        let prices = prices(&[([1.0, 1.0, 0.0], 10.0), ([1.0, 5.0, 0.0], 5.0)]);
        assert!(prices.iter().all(|price| *price >= 0.0));
        assert!(prices[2].abs() < f64::EPSILON);
    }
}
