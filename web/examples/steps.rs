//! Ten thousand random calls under limits of every kind, and calls of patterns under two limits at once, and what
//! became of them, as JSON: what `./dev web` compares with the same in a browser.

use std::fmt::Write;

use fastrand::Rng;
use serde_json::{Value, json};
use tollgate_web::simulate;

fn main() {
    let mut random = Rng::with_seed(SEED);
    let mut scenes: Vec<_> = (0..SCENES).map(|place| scene(&mut random, KINDS[place % KINDS.len()])).collect();
    scenes.extend((0..PAIRS).map(|place| pair(&mut random, place)));
    let found: Vec<_> = scenes.iter().map(found).collect();
    let answers = |found: &[Value]| {
        let trials = found.iter().flat_map(|found| found["trials"].as_array().into_iter().flatten());
        let answers = trials.flat_map(|trial| trial["answers"].as_array().into_iter().flatten());
        answers.fold([0, 0], |[all, granted], answer| [all + 1, granted + usize::from(*answer == json!(0))])
    };
    // Steps of which nearly all come to the same try little.
    let [all, granted] = answers(&found[..SCENES]);
    assert!(all == STEPS && (STEPS / 5..STEPS * 4 / 5).contains(&granted), "{granted} of {all} calls are granted");
    let [all, granted] = answers(&found[SCENES..]);
    assert!((all / 5..all * 4 / 5).contains(&granted), "{granted} of {all} calls under pairs are granted");
    let pairs: Vec<_> = scenes.iter().zip(&found).map(|(scene, found)| json!([scene, found])).collect();
    println!("{}", json!(pairs));
}

/// Fifty calls under a limit of a kind.
fn scene(random: &mut Rng, kind: &str) -> Value {
    let limit = limit(random, kind, kind);
    let (mut csv, mut at) = ("time,key,cost\n".to_owned(), START);
    for _ in 0..CALLS {
        at += random.u64(0..300_000);
        let (key, cost) = (random.u8(0..3), random.u32(1..8_000_000));
        let (whole, part, tokens, micros) = (at / 1_000_000, at % 1_000_000, cost / 1_000_000, cost % 1_000_000);
        writeln!(csv, "{whole}.{part:06},{key},{tokens}.{micros:06}").expect("a text takes what is written");
    }
    let mut scene = json!({ "limits": [limit], "csv": csv, "reserve": random.bool(), "funds": "90" });
    end(random, &mut scene);
    go_on(random, &mut scene);
    scene
}

/// Calls of every pattern under two limits, of which the second is asked by itself, with the first or where it refuses.
fn pair(random: &mut Rng, place: usize) -> Value {
    let kinds = [random.usize(..KINDS.len()), random.usize(..KINDS.len())].map(|kind| KINDS[kind]);
    let [first, mut second] = [limit(random, kinds[0], "first"), limit(random, kinds[1], "second")];
    let asking = ["alone", "lend", "in_turn"][place % 3];
    let traffic = [
        format!("burst size={} every={}ms for=5s key=noisy cost=0.7", random.u32(1..20), random.u32(500..3_000)),
        format!("constant rate={} per=1s for=4s from=1s clients=2", random.u32(1..9)),
        format!("poisson rate={} per=1s for=6s key=quiet clients=3 cost=1.25", random.u32(1..9)),
    ];
    let (seed, watch) = (random.u64(..).to_string(), ["", "quiet-2", "noisy"][random.usize(..3)]);
    let mut scene = json!({ "traffic": traffic, "funds": "9.5", "seed": seed, "watch": watch });
    match asking {
        "lend" => {
            second["global"] = json!(true);
            scene["lend"] = json!(random.u32(0..9).to_string());
        }
        "in_turn" => scene["in_turn"] = json!(true),
        _ => scene["reserve"] = json!(random.bool()),
    }
    scene["limits"] = json!([first, second]);
    end(random, &mut scene);
    go_on(random, &mut scene);
    scene
}

/// Granted calls go on to a service that falters, and the limits follow it.
fn go_on(random: &mut Rng, scene: &mut Value) {
    if scene["reserve"] == json!(true) || random.bool() {
        return;
    }
    let [rate, falters, from] = [5..40, 1..5, 0..4].map(|range| random.u32(range));
    scene["service"] = json!(format!("rate={rate} per=1s falters={falters} from={from}s for=3s"));
    for limit in scene["limits"].as_array_mut().expect("a scene has limits") {
        limit["follows"] = json!(format!("{}s", random.u32(1..20)));
    }
}

/// A limit of a kind, by random words.
fn limit(random: &mut Rng, kind: &str, name: &str) -> Value {
    let mut words = vec![("kind", kind.to_owned())];
    let mut word = |field, number: u32| words.push((field, number.to_string()));
    let rate = random.u32(1..30);
    if kind != "wallet" {
        word("rate", rate);
        words.push(("per", format!("{}us", random.u32(1..3_000_000))));
    }
    let mut word = |field, number: u32| words.push((field, number.to_string()));
    if kind.ends_with("bucket") || kind == "fixed_window" {
        word("capacity", random.u32(1..60));
        word("max_reserved", random.u32(0..20));
    }
    match kind {
        "token_bucket" => word("shards", random.u32(1..4)),
        "fixed_window" => {
            word("shards", random.u32(1..4));
            words.extend(random.bool().then(|| ("start", "300ms".to_owned())));
        }
        "sliding_window" => word("resolution", random.u32(1..63)),
        "wallet" => word("overdraft", random.u32(0..10)),
        _ => {}
    }
    json!({ "name": name, "words": words, "global": random.bool() })
}

/// How calls end.
fn end(random: &mut Rng, scene: &mut Value) {
    scene["work"] = json!(format!("{}ms", random.u32(1..2_000)));
    if random.bool() {
        scene["used"] = json!(random.u32(0..6).to_string());
    }
    if random.bool() {
        scene["dies"] = json!(random.u32(1..5).to_string());
    }
    if random.bool() {
        scene["lapses_after"] = json!(format!("{}ms", random.u32(1..3_000)));
    }
}

/// All that is recorded of a scene.
fn found(scene: &Value) -> Value {
    let mut recording = simulate(&text(scene)).unwrap_or_else(|faults| panic!("{faults}: {scene}"));
    let mut trials = Vec::new();
    while let Some(mut trial) = recording.next_trial() {
        while !trial.advance(CALLS).unwrap_or_else(|faults| panic!("{faults}: {scene}")) {}
        // What is drawn as never crossed is not: a point is an instant and an amount. To a bucket more may come back in
        // a period than it granted in it.
        let kind = scene["limits"][trials.len()]["words"][0][1].as_str().expect("a limit has a kind");
        let is_within = |used: f64| used <= trial.bound() && (used >= 0.0 || kind.ends_with("bucket"));
        assert!(trial.used().chunks(2).all(|point| is_within(point[1])), "beyond the bound: {scene}");
        trials.push(json!({
            "answers": trial.answers(),
            "waits": trial.waits(),
            "balances": trial.balances(),
            "levels": trial.levels(),
            "seen": trial.seen(),
            "shares": trial.shares(),
            "ends": trial.ends(),
            "used": trial.used(),
            "bound": trial.bound(),
        }));
    }
    json!({ "span": recording.span(), "instants": recording.instants(), "costs": recording.costs(), "trials": trials })
}

/// A scene as the core takes it: names and values in turn, each before a NUL.
fn text(scene: &Value) -> String {
    let mut pairs = Vec::new();
    for (name, value) in scene.as_object().expect("a scene has names") {
        match value {
            Value::Bool(is_so) => pairs.extend(is_so.then_some((&name[..], ""))),
            Value::String(value) => pairs.push((name, value)),
            several => {
                for limit in several.as_array().expect("all else are lists") {
                    if let Some(value) = limit.as_str() {
                        pairs.push((name, value));
                        continue;
                    }
                    pairs.push(("limit", limit["name"].as_str().expect("a name is a text")));
                    pairs.extend(limit["global"].as_bool().and_then(|is_global| is_global.then_some(("global", ""))));
                    pairs.extend(limit["follows"].as_str().map(|recovers| ("follows", recovers)));
                    let words = limit["words"].as_array().into_iter().flatten();
                    pairs.extend(words.filter_map(|word| Some((word[0].as_str()?, word[1].as_str()?))));
                }
            }
        }
    }
    pairs.into_iter().flat_map(|(name, value)| [name, "\0", value, "\0"]).collect()
}

const KINDS: [&str; 6] = ["token_bucket", "fixed_window", "stepped_bucket", "sliding_window", "concurrency", "wallet"];
const SCENES: usize = 200;
const CALLS: usize = 50;
const STEPS: usize = SCENES * CALLS;
/// Scenes of two limits.
const PAIRS: usize = 120;
const SEED: u64 = 7;
/// In microseconds since 1970.
const START: u64 = 1_735_689_600_000_000;
