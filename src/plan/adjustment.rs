use crate::algebra::Rest;
use crate::tokens::Tokens;

/// A change that takes or gives whatever the balance is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Adjustment {
    Credit(Tokens),
    Debit(Tokens),
    /// Gives back tokens that were taken ahead, except those that time has brought back.
    GiveBack(Rest),
    /// Changes nothing.
    Look,
    Reset,
}
