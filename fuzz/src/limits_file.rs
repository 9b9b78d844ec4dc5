use serde_json::{Map, Value};
use tollgate::plan::{Answer, Plan, Verb};
use tollgate::{DAY, Error, FileFault, Limit, LimitKind, LimitSpec, Limits, LimitsError, Tokens, algebra::Timestamp};

use crate::input::expect_round_trip;

/// A limits file: JSON where it begins with `{`, else TOML.
///
/// A sound file can be written in both languages and read again to the same limits, and each limit answers calls. The
/// fault of any other lies in the text, and a line above moves it down.
pub fn limits_file(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let read = if text.trim_start().starts_with('{') { Limits::from_json } else { Limits::from_toml };
    let told = result(read(text));
    if !text.starts_with('\u{feff}') {
        assert_eq!(result(read(&format!("\u{feff}{text}"))), told, "a byte order mark is no part of a file");
        expect_moved(&told, &result(read(&format!("\n{text}"))));
    }
    match told {
        Ok(limits) => expect_sound(&limits),
        Err(fault) => expect_place(text.strip_prefix('\u{feff}').unwrap_or(text), &fault),
    }
}

fn result(read: Result<Limits, LimitsError>) -> Result<Limits, FileFault> {
    read.map_err(|error| match error {
        LimitsError::Faulty { fault, .. } => fault,
        other => panic!("{other:?}"),
    })
}

/// The same with an empty line above.
fn expect_moved(told: &Result<Limits, FileFault>, below: &Result<Limits, FileFault>) {
    match (told, below) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => {
            assert_eq!((&one.message, one.column), (&other.message, other.column), "only its line differs");
            assert!(one.message == PLACELESS || one.line + 1 == other.line, "{one:?} {other:?}");
        }
        other => panic!("an empty line changes what a file says: {other:?}"),
    }
}

fn expect_place(text: &str, fault: &FileFault) {
    let line = text.split('\n').nth(fault.line - 1).unwrap_or_else(|| panic!("{fault:?} lies below the text"));
    assert!((1..=line.chars().count() + 1).contains(&fault.column), "{fault:?} lies beside the text");
    assert!(!fault.message.is_empty());
}

fn expect_sound(limits: &Limits) {
    let by_name = limits.iter().map(|limit| (limit.name().to_owned(), fields(limit)));
    let json = serde_json::to_string(&by_name.collect::<Map<_, _>>()).expect("values become JSON");
    assert_eq!(Limits::from_json(&json).as_ref().map_err(ToString::to_string), Ok(limits), "{json}");
    let toml = limits.to_toml();
    assert_eq!(Limits::from_toml(&toml).as_ref().map_err(ToString::to_string), Ok(limits), "{toml}");
    for limit in limits.iter() {
        assert_eq!(Limit::try_from(limit.spec()).as_ref(), Ok(limit));
        assert_eq!(limits.get(limit.name()), Ok(limit));
        expect_round_trip::<LimitSpec>(limit);
        expect_answer(limit);
    }
}

/// The fields of a limit in a file.
fn fields(limit: &Limit) -> Value {
    let mut fields = serde_json::to_value(limit).expect("a limit becomes JSON");
    fields.as_object_mut().expect("a limit has fields").remove("name");
    fields
}

/// A rested key has all of the limit, and no more.
fn expect_answer(limit: &Limit) {
    let most = match limit.kind {
        LimitKind::Meter => Tokens::MAX,
        LimitKind::Wallet => limit.max_reserved,
        _ => limit.most(),
    };
    let ask = |cost: Tokens| {
        let (request, now) = (limit.key("k").cost(cost), Timestamp::from_micros(0));
        let is_billing = limit.kind == LimitKind::Billing;
        let request = if is_billing { request.period(now.into(), now.plus(DAY).into()) } else { request };
        let plan = Plan::new([Verb::consume(request)])?;
        let found = vec![None; plan.rows().len()];
        plan.decide(&found, &[], now).answers.remove(0)
    };
    assert!(matches!(ask(most), Ok(Answer::Granted { .. })), "{limit:?}");
    if let Some(more) = most.checked_add(Tokens::from_micros(1)) {
        match ask(more) {
            Err(Error::CostExceedsCapacity { .. }) => {}
            Ok(Answer::Denied(_)) if limit.kind == LimitKind::Wallet => {}
            other => panic!("{limit:?} grants more than it has: {other:?}"),
        }
    }
}

/// The message of TOML's parser for brackets that are nested too deeply. It says no place.
const PLACELESS: &str = "recursion limit";
