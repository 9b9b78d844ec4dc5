//! Makes the calls of `first_of` and `split`. The ledger of the plan chooses.

use super::{Asked, Call, CallError, Request, Wanted};
use crate::tokens::{Tokens, TokensError};

/// A call that takes the first of several alternatives that is granted: a plan, else bought credits. Each alternative
/// is a request, or several requests that are taken all or none, or a [`split`].
///
/// It is one call, for the verbs that take tokens now ([`consume`](crate::Limiter::consume) and the like). It is
/// decided once, under one order of locks. Only the first alternative that is granted is charged, and
/// [`Grant::alternative`](crate::Grant::alternative) says which one that is. A refusal is that of the alternative with
/// the shortest wait, and names its limits. With more time a call never gets a later alternative. An alternative that
/// can never be granted is left out; if none can be granted, the call is an error.
///
/// [`and`](Call::and) adds its requests to each alternative. Alternatives that are themselves a `first_of` are
/// alternatives of this call, and are counted in their order. The options of the call ([`once`](Call::once),
/// [`lapses_after`](Call::lapses_after)) count whichever alternative is charged. A repeat of `once` returns the first
/// grant, even if an earlier alternative would be granted by now. Alternatives in another order are another call.
/// Requests of one alternative with [`up_to`](Request::up_to) must agree.
///
/// # Errors
///
/// The verb reports them. [`Error::Call`](crate::Error::Call) for no requests, for an alternative without requests, for
/// an alternative with options of a whole call, and for a verb that reserves.
/// [`Error::CostExceedsCapacity`](crate::Error::CostExceedsCapacity) if no alternative can ever be granted.
///
/// # Example
///
/// ```
/// use tollgate::{DAY, Error, Gate, Limit, first_of};
///
/// const PLAN: Limit = Limit::fixed_window("plan", 1_000, DAY);
/// const CREDITS: Limit = Limit::wallet("credits");
///
/// /// Whether a mail may be sent, and whether it costs the customer money.
/// async fn mail(gate: &Gate, customer: i64) -> Result<Option<bool>, Error> {
///     let decision = gate.consume(first_of([PLAN.key(customer), CREDITS.key(customer)])).await?;
///     Ok(decision.granted().ok().map(|grant| grant.alternative == 1))
/// }
/// # let _ = mail;
/// ```
pub fn first_of(alternatives: impl IntoIterator<Item: Into<Call>>) -> Call {
    let (mut all, mut first_fault) = (Vec::new(), None);
    for alternative in alternatives {
        let Call { asked, once, keeping, fault } = alternative.into();
        let has_options = once.is_some() || keeping.is_some();
        first_fault = first_fault.or(fault).or(has_options.then_some(CallError::OptionInside));
        match asked {
            Asked::Request(request) => all.push(vec![Wanted::Request(request)]),
            Asked::Requests(wanted) => all.push(wanted),
            // Without it, the other alternatives could be granted alone.
            Asked::FirstOf(none) if none.is_empty() => all.push(Vec::new()),
            Asked::FirstOf(several) => all.extend(several),
        }
    }
    Call { fault: first_fault, ..Call::of(Asked::FirstOf(all)) }
}

/// Takes one cost from several limits, one after another: as much as the plan has, and the rest from bought credits.
/// All of it is taken, or nothing.
///
/// The costs of the requests do not matter. Each limit gives the tokens that it has, without a debt and without the
/// tokens that must [stay behind](Request::leaving). If the cost is whole, it gives whole tokens. A refusal names the
/// first of the limits, and the instant at which all of them together have the cost. If the call is settled below the
/// cost, tokens go back to the last limit first; use beyond the cost is charged to the last limit that was charged. The
/// split is a call, or an alternative of [`first_of`]; requests that [`and`](Call::and) adds are taken with it or not
/// at all.
///
/// # Errors
///
/// The verb reports them. [`Error::Call`](crate::Error::Call) for no request, for a limit and key that the call asks
/// twice, and for a [concurrency](crate::Limit::concurrency) limit. Also for a request with
/// [`up_to`](Request::up_to), and for a verb that reserves.
/// [`Error::CostExceedsCapacity`](crate::Error::CostExceedsCapacity) for a cost that the limits together can never
/// have.
///
/// # Example
///
/// ```
/// use tollgate::{DAY, Error, Gate, HOUR, Limit, split};
///
/// const PLAN: Limit = Limit::fixed_window("plan", 100_000, DAY);
/// const CREDITS: Limit = Limit::wallet("credits");
///
/// async fn complete(gate: &Gate, customer: i64, estimate: u32) -> Result<(), Box<dyn std::error::Error>> {
///     let both = [PLAN.key(customer), CREDITS.key(customer)];
///     let grant = gate.consume(split(estimate, both).lapses_after(HOUR)).await?.granted()?;
///     let used = call_the_model(estimate).await;
///     // Credits come back first.
///     gate.settle(grant, used).await?;
///     Ok(())
/// }
/// # async fn call_the_model(_: u32) -> u32 { 1 }
/// # let _ = complete;
/// ```
pub fn split(
    cost: impl TryInto<Tokens, Error: Into<TokensError>>,
    requests: impl IntoIterator<Item = Request>,
) -> Call {
    let (cost, fault) = match cost.try_into() {
        Ok(cost) => (cost, None),
        Err(error) => (Tokens::ZERO, Some(CallError::Cost(error.into()))),
    };
    let of = requests.into_iter().collect();
    Call { fault, ..Call::of(Asked::Requests(vec![Wanted::Split { cost, of }])) }
}
