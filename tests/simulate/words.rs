//! Limits and traffic as people write them on a command line.

use tollgate::simulate::{Rule, Traffic};
use tollgate::{DAY, HOUR, Limit, MINUTE, SECOND, Tokens};

#[test]
fn a_limit_is_a_kind_and_the_fields_of_a_limits_file() {
    let rule = |text: &str| text.parse::<Rule>().unwrap();
    let bucket = Limit::token_bucket("api", 10, MINUTE).capacity(20).max_reserved(5);
    assert_eq!(rule("token_bucket name=api rate=10 per=1m capacity=20 max_reserved=5"), Rule::each(bucket));
    let window = Limit::fixed_window("india", 3, DAY).start(18 * HOUR + 30 * MINUTE);
    assert_eq!(rule("fixed_window per=1d start=18h30m rate=3 name=india global"), Rule::global(window));
    let spread = Limit::token_bucket("spread", 60, MINUTE).shards(4);
    assert_eq!(rule("token_bucket name=spread rate=60 per=1m shards=4 global"), Rule::global(spread));
    let half = rule("stepped_bucket rate=0.5 period=10s max_reserved=unbounded");
    assert_eq!(half.limit().spec().rate, Tokens::from_micros(500_000));
    assert_eq!(half.limit().name(), "stepped bucket 0.5 per 10s, reservations unbounded", "named by what it is");
}

#[test]
fn a_wrong_limit_says_what_is_wrong() {
    let error = |text: &str| text.parse::<Rule>().unwrap_err().to_string();
    assert!(error("token_bucket rate=10 per=1m capcity=2").starts_with("unknown field `capcity`, expected one of"));
    assert!(error("token rate=10 per=1m").starts_with("unknown variant `token`, expected one of `fixed_window`"));
    assert!(error("token_bucket per=1m").starts_with("missing field `rate`"));
    assert!(error("token_bucket rate=10 per=soon").contains("in the duration \"soon\""));
    assert!(error("token_bucket rate=NaN per=1m").contains("not a plain decimal number"));
    assert!(error("token_bucket rate=0 per=1m").ends_with("the rate must be positive"));
    assert!(error("token_bucket rate=1 per=1m start=1s").contains("has no start"));
    assert!(
        error("token_bucket rate=1 per=1m shards=0")
            .ends_with("there are no shards (1 is a limit that is not sharded)")
    );
    assert!(error("token_bucket rate=1 per=1m shards=65").ends_with("there are too many shards (at most 64)"));
    assert!(error("token_bucket rate=1 per=1m shards=many").contains("invalid type: string \"many\""));
    assert_eq!(error("token_bucket rate=1 rate=2 per=1m"), "\"rate\" is given twice");
    assert!(error("token_bucket rate=1 per=1m shared").starts_with("\"shared\" is neither a field"));
    for text in ["", " ", "rate=10 per=1m"] {
        assert!(error(text).starts_with("it does not begin with a kind"), "{text:?}");
    }
}

#[test]
fn traffic_is_read_as_it_is_printed() {
    let all = [
        Traffic::constant(60, SECOND).lasting(10 * SECOND),
        Traffic::poisson(5, MINUTE).clients(3).cost(Tokens::from_micros(500_000)),
        Traffic::burst(10, 2 * SECOND).from(90 * SECOND).key("dashboard"),
        Traffic::diurnal(20, MINUTE),
    ];
    for traffic in all {
        assert_eq!(traffic.to_string().parse(), Ok(traffic.clone()), "{traffic}");
    }
    assert_eq!(Traffic::diurnal(20, MINUTE).to_string(), "diurnal rate=20 per=1m for=1day");
}

#[test]
fn wrong_traffic_says_what_is_wrong() {
    let error = |text: &str| text.parse::<Traffic>().unwrap_err().to_string();
    assert!(error("steady rate=1 per=1s").starts_with("\"steady\" is no kind of traffic"));
    assert!(error("constant rate=1 per=1s till=1m").starts_with("\"till\" is no field of this traffic"));
    assert!(error("constant rate=1 per=1s twice").starts_with("\"twice\" is no field"));
    assert!(error("burst rate=1 per=1s").starts_with("\"rate\" is no field"), "a burst has a size");
    assert!(error("constant rate=1.5 per=1s").starts_with("rate of the traffic: it is no whole number"));
    assert!(error("constant rate=1 per=never").starts_with("per of the traffic: "));
    assert!(error("constant rate=1 per=1s cost=-1").starts_with("the cost: a number of tokens is negative"));
    assert!(error("constant rate=1 per=1s clients=100001").starts_with("there are more than 100000 clients"));
    assert!(error("constant rate=1 per=1s for=1001years").ends_with("longer than 1000 years"));
    for text in ["constant", "constant rate=0 per=1s", "poisson rate=1 per=0s", "burst size=1 every=1s for=0s"] {
        assert!(error(text).starts_with("this traffic makes no calls"), "{text:?}");
    }
}
