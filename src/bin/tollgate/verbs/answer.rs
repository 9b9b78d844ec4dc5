//! What the verbs print.

use std::io::Write;

use tollgate::{Balance, Decision, Denied, Grant, Reservation, Tokens};

use super::AskArgs;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::{self, BAD, CAUTION, GOOD, OutputArgs, answered, instant, shown, span, styled};

pub(super) fn decision(ask: &AskArgs, granted: &str, decision: &Decision) -> Result<Exit, CommandError> {
    let printed = match decision {
        _ if ask.output.json => output::json(decision),
        Decision::Granted(Grant { remaining, .. }) => {
            line(&format!("{}: {}; {remaining} left", styled(GOOD, granted), what(ask)))
        }
        Decision::Denied(denied) => line(&refusal(ask.cost, denied)),
    };
    answered(printed, exit(decision))
}

pub(super) fn reservation(ask: &AskArgs, decision: &Decision<Reservation>) -> Result<Exit, CommandError> {
    let printed = match decision {
        _ if ask.output.json => output::json(decision),
        Decision::Granted(reserved) if reserved.is_ready() => {
            line(&format!("{}: {}, ready now", styled(GOOD, "reserved"), what(ask)))
        }
        Decision::Granted(reserved) => {
            let (wait, at) = (span(reserved.wait()), instant(reserved.ready_at));
            line(&format!("{}: {}, ready in {wait}, at {at}", styled(CAUTION, "reserved"), what(ask)))
        }
        Decision::Denied(denied) => line(&refusal(ask.cost, denied)),
    };
    answered(printed, exit(decision))
}

pub(super) fn balance(output: OutputArgs, done: &str, balance: &Balance) -> Result<Exit, CommandError> {
    let printed = if output.json { output::json(balance) } else { line(&balance_line(done, balance)) };
    answered(printed, Exit::Done)
}

/// Why there is no grant, and when there will be one.
pub(super) fn refusal(cost: Tokens, denied: &Denied) -> String {
    let Denied { limit, key, remaining, retry_at, .. } = denied;
    let (refused, after) = (styled(BAD, "refused"), span(denied.retry_after()));
    let key = shown(key);
    format!("{refused}: {cost} of {limit:?} for {key}; it has {remaining}, retry in {after}, at {}", instant(*retry_at))
}

fn balance_line(done: &str, balance: &Balance) -> String {
    let Balance { limit, key, value, capacity, .. } = balance;
    let done = styled(GOOD, done);
    let full = if balance.is_full() {
        "full".to_owned()
    } else {
        let missing = (balance.full_at - balance.observed_at).to_std().unwrap_or_default();
        format!("full in {}, at {}", span(missing), instant(balance.full_at))
    };
    format!("{done}: {limit:?} for {} has {value} of {capacity}; {full}", shown(key))
}

fn what(ask: &AskArgs) -> String {
    format!("{} of {:?} for {}", ask.cost, ask.target.name, shown(&ask.target.who.key()))
}

fn exit<T>(decision: &Decision<T>) -> Exit {
    if decision.is_granted() { Exit::Done } else { Exit::Refused }
}

fn line(text: &str) -> Result<(), CommandError> {
    Ok(writeln!(output::out(), "{text}")?)
}
