//! Problem documents, and the responses that they are in.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate::{CallError, DriverError, Error, FitError, Key, Limit, MINUTE, SetupFault, Step, Tokens, TokensError};
use tollgate_http::{Fields, NoKey, NotServed, RepeatedField};

use crate::world::{World, millis};

fn parts(reason: &NotServed) -> (StatusCode, Option<u64>, Value) {
    let response: Response<String> = reason.response(Fields::default());
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["cache-control"], "no-store", "it is the answer of one client");
    assert_eq!(response.status(), reason.status());
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    assert_eq!(retry_after, reason.retry_after());
    (response.status(), retry_after, serde_json::from_str(response.body()).unwrap())
}

#[test]
fn a_refusal_is_a_429_that_names_its_limits_and_the_instant_but_never_the_key() {
    let [slow, fast] = ["slow %", "fast"].map(|name| Limit::token_bucket(name, 1, MINUTE));
    let mut world = World::default();
    let mut ask = || world.consume([fast.key("secret"), slow.key("secret"), slow.key("another")], millis(500));
    assert!(ask().is_granted());
    let reason = NotServed::from(ask().denied().unwrap());
    let (status, retry_after, body) = parts(&reason);
    assert_eq!((status, retry_after), (StatusCode::TOO_MANY_REQUESTS, Some(60)));
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], json!(["slow %25", "fast"]), "as RateLimit-Policy names them, each once");
    assert_eq!(body["reason"], "short");
    assert_eq!(body["retry_at"], "1970-01-01T00:01:00.500Z");
    assert!(!body.to_string().contains("secret"), "{body}");
}

#[test]
fn a_handlers_own_statement_that_fails_is_a_500_unless_the_pool_or_the_network_is_the_cause() {
    let io = || sqlx::Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    let cases = [
        (sqlx::Error::PoolTimedOut, 503, Some(1)),
        (sqlx::Error::PoolClosed, 503, Some(5)),
        (io(), 503, Some(5)),
        (sqlx::Error::RowNotFound, 500, None),
        (sqlx::Error::ColumnNotFound("secret".to_owned()), 500, None),
        (sqlx::Error::Protocol("secret".to_owned()), 500, None),
        (sqlx::Error::WorkerCrashed, 500, None),
    ];
    for (error, status, retry_after) in cases {
        let told = error.to_string();
        let reason = NotServed::from(error);
        assert!(reason.to_string().ends_with(&told), "{reason}");
        let (actual, after, body) = parts(&reason);
        assert_eq!((actual.as_u16(), after), (status, retry_after), "{told}");
        assert!(!body.to_string().contains("limit") && !body.to_string().contains("secret"), "{body}");
    }
}

#[test]
fn errors_have_the_status_that_their_cause_deserves() {
    let limit = || "some".into();
    let source = DriverError::from(sqlx::Error::Protocol("host 10.9.8.7, user postgres".to_owned()));
    let key = Key::new("a\0b").unwrap_err();
    let exceeded = Error::CostExceedsCapacity { limit: limit(), asked: Tokens::new(9), max: Tokens::new(5) };
    let cases = [
        (Error::Locked { limit: limit() }, 503, Some(1)),
        (Error::Overloaded { limit: limit() }, 503, Some(1)),
        (Error::PoolExhausted { limit: limit() }, 503, Some(1)),
        (Error::Database { step: Step::Read, limit: Some(limit()), source: source.clone() }, 503, Some(5)),
        (Error::OutcomeUnknown { limit: limit(), source: Some(source.clone()) }, 503, Some(5)),
        (Error::Stopped, 503, Some(5)),
        (Error::CorruptRow { limit: limit(), fault: "an infinite instant" }, 500, None),
        (exceeded, 400, None),
        (Error::Key { limit: limit(), source: key }, 400, None),
        (Error::Call { limit: Some(limit()), source: CallError::Cost(TokensError::NotFinite) }, 500, None),
        (Error::OnceMismatch { limit: limit() }, 422, None),
        (Error::Call { limit: None, source: CallError::NothingAsked }, 500, None),
        (Error::DoesNotFit { limit: limit(), source: FitError::DebtTooDeep }, 500, None),
        (Error::NotInTransaction, 500, None),
    ];
    let faults = [
        SetupFault::NamedStatements,
        SetupFault::Rights,
        SetupFault::RowSecurity,
        SetupFault::Schema,
        SetupFault::WrongParts,
    ];
    let lasting = faults.map(|fault| (Error::Setup { fault, source: source.clone() }, 500, None));
    assert!(lasting.iter().all(|(error, ..)| error.is_setup()));
    for (error, status, retry_after) in cases.into_iter().chain(lasting) {
        let told = error.to_string();
        let (actual, after, body) = parts(&error.into());
        assert_eq!((actual.as_u16(), after), (status, retry_after), "{told}");
        assert!(body["title"].as_str().unwrap().len() > 20, "words, whatever the status: {body}");
        assert!(!body.to_string().contains("10.9.8.7"), "what the database said is for logs: {body}");
    }
    let exceeded = Error::CostExceedsCapacity { limit: limit(), asked: Tokens::new(9), max: Tokens::new(5) };
    let (_, _, body) = parts(&exceeded.into());
    let detail = "the request asks 9 tokens of limit \"some\", and may ask at most 5 at once";
    assert_eq!(body["detail"], detail, "a client can change neither the capacity nor max_reserved");
    let nul = Error::Key { limit: limit(), source: Key::new("a\0b").unwrap_err() };
    let (_, _, body) = parts(&nul.into());
    let detail = "the key asked of limit \"some\" is invalid: a key contains a NUL character";
    assert_eq!(body["detail"], detail, "who asked is told the cause as well");
    let (status, after, body) = parts(&NoKey("look there".into()).into());
    assert_eq!((status.as_u16(), after, &body["detail"]), (500, None, &json!("look there")));
    let (status, after, body) = parts(&RepeatedField(http::header::AUTHORIZATION).into());
    let detail = "the header field \"authorization\" occurs several times (send it once)";
    assert_eq!((status.as_u16(), after, &body["detail"]), (400, None, &json!(detail)));
}
