//! The tables in the documentation of `Call` and `Request`: which option counts with which verb.

use tollgate::plan::Verb;
use tollgate::{Call, CallError, Error, HOUR, Limit, MINUTE, Request, first_of, split};

use crate::world::{World, at, sec};

const LIMIT: Limit = Limit::fixed_window("limit", 10, MINUTE);
const BILLING: Limit = Limit::billing("billing", 10);

type Ask = fn(Call) -> Verb;
type AskOne = fn(Request) -> Verb;
type RequestOption = (&'static str, fn(Request) -> Request);
type CallOption = (&'static str, fn(Request) -> Call);

const VERBS: [(&str, Ask); 5] = [
    ("consume", |call| Verb::consume(call)),
    ("check", |call| Verb::check(call)),
    ("reserve", |call| Verb::reserve(call)),
    ("credit", |call| Verb::credit(call)),
    ("debit", |call| Verb::debit(call)),
];
const OF_A_REQUEST: [(&str, AskOne); 2] = [("reset", Verb::Reset), ("balance", Verb::Look)];

const REQUEST_OPTIONS: [RequestOption; 5] = [
    ("cost", |request| request.cost(3)),
    ("up_to", |request| request.up_to(1)),
    ("leaving", |request| request.leaving(1)),
    ("flat", Request::flat),
    ("period", |_| BILLING.key("k").period(at(0).into(), at(3_600_000_000).into())),
];
const CALL_OPTIONS: [CallOption; 6] = [
    ("and", |request| Call::from(request).and(LIMIT.key("l"))),
    ("first_of", |request| first_of([request])),
    ("split", |request| split(2, [request])),
    ("lapses_after", |request| request.lapses_after(HOUR)),
    ("tracked_for", |request| request.tracked_for(HOUR)),
    ("once", |request| request.once(1)),
];

/// Each cell of a table: an option, a verb, and the word of the table for both.
fn cells(text: &'static str) -> Vec<(&'static str, &'static str, &'static str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("/// |"));
    let mut rows = lines.map(|line| line.trim_end_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let verbs = rows.next().unwrap();
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    let of_row = |row: Vec<&'static str>| {
        let option = quoted(row[0]).next().unwrap();
        let each = verbs.iter().zip(row).skip(1);
        each.flat_map(move |(verbs, says)| quoted(verbs).map(move |verb| (option, verb, says))).collect::<Vec<_>>()
    };
    rows.skip(1).flat_map(of_row).collect()
}

/// The answer of a window of which a part is used, so that answers differ by their options.
fn answer(verb: Verb) -> (Result<tollgate::plan::Answer, Error>, World) {
    let mut world = World::default();
    world.granted(LIMIT.key("k").cost(5), sec(0));
    let answer = world.call(verb, sec(1));
    (answer, world)
}

fn expect(says: &str, option: &'static str, what: &str, with: Verb, plain: Verb) {
    let (told, world) = answer(with);
    let option = if option == "and" { "several requests" } else { option };
    let fault = CallError::WrongVerb { option };
    let is_fault = matches!(&told, Err(Error::Call { source, .. }) if *source == fault);
    match says {
        "fault" => assert!(is_fault, "{what}: {told:?}"),
        "counts" => assert!(told.is_ok(), "{what}: {told:?}"),
        "–" => {
            let plain = answer(plain);
            assert_eq!((format!("{told:?}"), &world), (format!("{:?}", plain.0), &plain.1), "{what}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn each_option_counts_is_a_fault_or_does_not_matter_as_the_tables_say() {
    let request = || LIMIT.key("k").cost(2);
    let of_requests = cells(include_str!("../../src/call/request.rs"));
    let says = |cells: &[(_, _, &'static str)], option, verb| {
        cells.iter().find(|cell| (cell.0, cell.1) == (option, verb)).unwrap().2
    };
    for (option, with) in REQUEST_OPTIONS {
        for (verb, ask) in VERBS {
            let (with, plain) = (ask(with(request()).into()), ask(request().into()));
            expect(says(&of_requests, option, verb), option, &format!("{verb} {option}"), with, plain);
        }
        for (verb, ask) in OF_A_REQUEST {
            let (with, plain) = (ask(with(request())), ask(request()));
            expect(says(&of_requests, option, verb), option, &format!("{verb} {option}"), with, plain);
        }
    }
    let of_calls = cells(include_str!("../../src/call/mod.rs"));
    for (option, with) in CALL_OPTIONS {
        for (verb, ask) in VERBS {
            let (with, plain) = (ask(with(request())), ask(request().into()));
            expect(says(&of_calls, option, verb), option, &format!("{verb} {option}"), with, plain);
        }
    }
    let like_consume = ["wait", "acquire", "stream"].len();
    assert_eq!(of_requests.len(), REQUEST_OPTIONS.len() * (VERBS.len() + OF_A_REQUEST.len() + like_consume));
    assert_eq!(of_calls.len(), CALL_OPTIONS.len() * (VERBS.len() + like_consume));
}
