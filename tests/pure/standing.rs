//! Where a row stands: when its next whole token is there, and what it can hold.

use tollgate::algebra::{Account, List, State, Terms};
use tollgate::{Key, Limit, SECOND, Tokens};

use crate::world::{micros, sec, tokens};

/// A token a second, ten at most.
const LIMIT: Limit = Limit::token_bucket("ten", 1, SECOND).capacity(10);

#[test]
fn the_next_whole_token_comes_when_the_fraction_is_full() {
    let terms = Terms::of(&LIMIT, &Key::GLOBAL);
    for (used, more_in) in [
        // 6.5 are there: half a second to the seventh.
        (3_500_000, Some(500_000)),
        // Six are there: a second to the seventh.
        (4_000_000, Some(1_000_000)),
        // 0.3 are there.
        (9_700_000, Some(700_000)),
        // In debt: it is paid first, and then comes a whole token.
        (12_250_000, Some(3_250_000)),
        // 9.999999 are there.
        (1, Some(1)),
        (0, None),
    ] {
        let row = State::new(micros(-used), sec(100)).full_at(sec(200));
        let more_at = Account::new(&terms, &[Some(row)], sec(100)).more_at();
        assert_eq!(more_at.map(|at| at.micros() - sec(100).micros()), more_in, "{used} used");
    }
}

#[test]
fn a_wallet_in_debt_can_be_given_the_largest_amount() {
    let terms = Terms::of(&Limit::wallet("wallet"), &Key::GLOBAL);
    let row = State { list: List::Wallet, ..State::new(tokens(-5), sec(0)) };
    let given = Account::new(&terms, &[Some(row)], sec(1)).credit(Tokens::MAX).remove(0);
    assert_eq!(given.next.value.micros(), Tokens::MAX.micros() - 5_000_000);
}
