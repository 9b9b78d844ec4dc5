//! Makes the requests of `first_of` and `split`, each with its place in the call. The ledger of the plan chooses.

use super::Request;
use crate::call_error::CallError;
use crate::tokens::{Tokens, TokensError};

/// A call that takes the first of several alternatives that is granted: a plan, else bought credits. Each alternative
/// is a request, or several requests that are taken all or none.
///
/// It is one call, for the verbs that take tokens now ([`consume`](crate::Limiter::consume) and the like). It is
/// decided once, under one order of locks. Only the first alternative that is granted is charged, and
/// [`Grant::alternative`](crate::Grant::alternative) says which one that is. A refusal is that of the alternative with
/// the shortest wait, and names its limits. With more time a call never gets a later alternative. An alternative that
/// can never be granted is left out; if none can be granted, the call is an error.
///
/// The options of a whole call ([`once`](Request::once), [`lapses_after`](Request::lapses_after)) count whichever
/// alternative is charged. A repeat of `once` returns the first grant, even if an earlier alternative would be granted
/// by now. Alternatives in another order are another call. Requests of one alternative with [`up_to`](Request::up_to)
/// must agree.
///
/// # Errors
///
/// The verb reports them. [`Error::Call`](crate::Error::Call) for no requests, for an alternative without requests, for
/// requests beside the alternatives, for alternatives within alternatives, and for a verb that reserves.
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
#[must_use = "alternatives do nothing until they are given to a verb"]
pub fn first_of(alternatives: impl IntoIterator<Item: IntoIterator<Item = Request>>) -> Vec<Request> {
    let numbered = alternatives.into_iter().enumerate();
    let of_number = |(number, requests): (usize, _)| {
        let requests = or_fault("first_of", CallError::AlternativeEmpty, requests);
        requests.into_iter().map(move |request| request.in_alternative(number))
    };
    numbered.flat_map(of_number).collect()
}

/// Takes one cost from several limits, one after another: as much as the plan has, and the rest from bought credits.
/// All of it is taken, or nothing.
///
/// The costs of the requests do not matter. Each limit gives the tokens that it has, without a debt and without the
/// tokens that must [stay behind](Request::leaving). If the cost is whole, it gives whole tokens. A refusal names the
/// first of the limits, and the instant at which all of them together have the cost. If the call is settled below the
/// cost, tokens go back to the last limit first; use beyond the cost is charged to the last limit that was charged. The
/// requests are one call, or one alternative of [`first_of`], or stand beside others, which are taken with them or not
/// at all.
///
/// # Errors
///
/// The verb reports them. [`Error::Call`](crate::Error::Call) for no request, for a limit and key that the call asks
/// twice, and for a [concurrency](crate::Limit::concurrency) limit. Also for a request with
/// [`up_to`](Request::up_to), for a split within a split, and for a verb that reserves.
/// [`Error::CostExceedsCapacity`](crate::Error::CostExceedsCapacity) for a cost that the limits together can never
/// have.
///
/// # Example
///
/// ```
/// use tollgate::{DAY, Error, Gate, Limit, split};
///
/// const PLAN: Limit = Limit::fixed_window("plan", 100_000, DAY);
/// const CREDITS: Limit = Limit::wallet("credits");
///
/// async fn complete(gate: &Gate, customer: i64, estimate: u32) -> Result<(), Box<dyn std::error::Error>> {
///     let both = [PLAN.key(customer), CREDITS.key(customer)];
///     let grant = gate.consume(split(estimate, both)).await?.granted()?;
///     let used = call_the_model(estimate).await;
///     // Credits come back first.
///     gate.settle(grant, used).await?;
///     Ok(())
/// }
/// # async fn call_the_model(_: u32) -> u32 { 1 }
/// # let _ = complete;
/// ```
#[must_use = "requests do nothing until they are given to a verb"]
pub fn split(
    cost: impl TryInto<Tokens, Error: Into<TokensError>>,
    requests: impl IntoIterator<Item = Request>,
) -> Vec<Request> {
    let cost = cost.try_into().map_err(Into::into);
    let requests = or_fault("split", CallError::SplitEmpty, requests);
    requests.into_iter().enumerate().map(|(place, request)| request.in_split(place, cost)).collect()
}

/// The requests; if there are none, one request that is an error. Without it, other requests of the call could be
/// granted alone.
fn or_fault(maker: &'static str, fault: CallError, requests: impl IntoIterator<Item = Request>) -> Vec<Request> {
    let mut requests: Vec<_> = requests.into_iter().collect();
    if requests.is_empty() {
        requests.push(Request::wrong(maker, fault));
    }
    requests
}
