//! The matrix in the documentation of `Request`: which option counts with which verb.

use tollgate::plan;
use tollgate::{CallError, Error, HOUR, Limit, MINUTE, Request, first_of, split};

use crate::world::{World, at, sec};

const LIMIT: Limit = Limit::fixed_window("limit", 10, MINUTE);

type Verb = fn(Request) -> plan::Verb;
type WithOption = fn(Request) -> Request;

const VERBS: [(&str, Verb); 7] = [
    ("consume", |request| plan::Verb::consume(request)),
    ("check", |request| plan::Verb::check(request)),
    ("reserve", |request| plan::Verb::reserve(request)),
    ("credit", plan::Verb::credit),
    ("debit", plan::Verb::debit),
    ("reset", plan::Verb::reset),
    ("balance", plan::Verb::look),
];

const OPTIONS: [(&str, WithOption); 10] = [
    ("cost", |request| request.cost(3)),
    ("up_to", |request| request.up_to(1)),
    ("leaving", |request| request.leaving(1)),
    ("first_of", |request| first_of([request]).remove(0)),
    ("split", |request| split(2, [request]).remove(0)),
    ("lapses_after", |request| request.lapses_after(HOUR)),
    ("tracked_for", |request| request.tracked_for(HOUR)),
    ("flat", Request::flat),
    ("once", |request| request.once(1)),
    ("period", |request| request.period(at(0).into(), at(3_600_000_000).into())),
];

/// Each cell of the table: an option, a verb, and the word of the table for both.
fn cells() -> Vec<(&'static str, &'static str, &'static str)> {
    let lines = include_str!("../../src/request/mod.rs").lines().filter_map(|line| line.strip_prefix("/// |"));
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

#[test]
fn each_option_counts_is_a_fault_or_does_not_matter_as_the_matrix_says() {
    let cells = cells();
    for (verb, call) in VERBS {
        for (option, with) in OPTIONS {
            let request = LIMIT.key("k").cost(2);
            // A part of the window is used, so that answers differ by their options.
            let answer = |request: Request| {
                let mut world = World::default();
                world.granted(LIMIT.key("k").cost(5), sec(0));
                let answer = world.call(call(request), sec(1));
                (answer, world)
            };
            let (told, world) = answer(with(request.clone()));
            let fault = match option {
                "lapses_after" | "tracked_for" => CallError::WithoutReceipt,
                option => CallError::NotConsumed { option },
            };
            let is_fault = matches!(&told, Err(Error::Call { source, .. }) if *source == fault);
            let (_, _, says) = cells.iter().find(|cell| (cell.0, cell.1) == (option, verb)).unwrap();
            match *says {
                "fault" => assert!(is_fault, "{verb} {option}: {told:?}"),
                "counts" => assert!(told.is_ok(), "{verb} {option}: {told:?}"),
                "–" => {
                    let plain = answer(request);
                    assert_eq!((format!("{told:?}"), &world), (format!("{:?}", plain.0), &plain.1), "{verb} {option}");
                }
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(cells.len(), OPTIONS.len() * (VERBS.len() + ["wait", "acquire", "stream"].len()));
}
