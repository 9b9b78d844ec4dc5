//! Ten thousand random calls under limits of every kind, and what became of them, as JSON: what `./dev web` compares
//! with the same in a browser.

use std::fmt::Write;

use fastrand::Rng;
use serde_json::{Value, json};
use tollgate_web::simulate;

fn main() {
    let mut random = Rng::with_seed(SEED);
    let scenes: Vec<_> = (0..SCENES).map(|place| scene(&mut random, KINDS[place % KINDS.len()])).collect();
    let found: Vec<_> = scenes.iter().map(found).collect();
    let answers = found.iter().flat_map(|found| found["answers"].as_array().into_iter().flatten());
    let granted = answers.filter(|answer| **answer == json!(0)).count();
    // Steps of which nearly all come to the same try little.
    assert!((STEPS / 5..STEPS * 4 / 5).contains(&granted), "{granted} of {STEPS} calls are granted");
    let pairs: Vec<_> = scenes.iter().zip(&found).map(|(scene, found)| json!([scene, found])).collect();
    println!("{}", json!(pairs));
}

/// Fifty calls under a limit of a kind.
fn scene(random: &mut Rng, kind: &str) -> Value {
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
        "token_bucket" | "fixed_window" => word("shards", random.u32(1..4)),
        "sliding_window" => word("resolution", random.u32(1..63)),
        "wallet" => word("overdraft", random.u32(0..10)),
        _ => {}
    }
    let (mut csv, mut at) = ("time,key,cost\n".to_owned(), START);
    for _ in 0..CALLS {
        at += random.u64(0..300_000);
        let (key, cost) = (random.u8(0..3), random.u32(1..8_000_000));
        let (whole, part, tokens, micros) = (at / 1_000_000, at % 1_000_000, cost / 1_000_000, cost % 1_000_000);
        writeln!(csv, "{whole}.{part:06},{key},{tokens}.{micros:06}").expect("a text takes what is written");
    }
    let limit = json!({ "name": kind, "words": words, "global": random.bool() });
    let mut scene = json!({ "limits": [limit], "csv": csv, "reserve": random.bool(), "funds": "90" });
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
    scene
}

/// All that is recorded of a scene.
fn found(scene: &Value) -> Value {
    let mut recording = simulate(&text(scene)).unwrap_or_else(|faults| panic!("{faults}: {scene}"));
    let mut trial = recording.next_trial().expect("there is one limit");
    while !trial.advance(CALLS).unwrap_or_else(|faults| panic!("{faults}: {scene}")) {}
    // What is drawn as never crossed is not: a point is an instant and an amount. To a bucket more may come back in a
    // period than it granted in it.
    let is_bucket = scene["limits"][0]["name"].as_str().is_some_and(|name| name.ends_with("bucket"));
    let is_within = |used: f64| used <= trial.bound() && (used >= 0.0 || is_bucket);
    assert!(trial.used().chunks(2).all(|point| is_within(point[1])), "beyond the bound: {scene}");
    json!({
        "span": recording.span(),
        "instants": recording.instants(),
        "answers": trial.answers(),
        "waits": trial.waits(),
        "balances": trial.balances(),
        "levels": trial.levels(),
        "used": trial.used(),
        "bound": trial.bound(),
    })
}

/// A scene as the core takes it: names and values in turn, each before a NUL.
fn text(scene: &Value) -> String {
    let mut pairs = Vec::new();
    for (name, value) in scene.as_object().expect("a scene has names") {
        match value {
            Value::Bool(is_so) => pairs.extend(is_so.then_some((&name[..], ""))),
            Value::String(value) => pairs.push((name, value)),
            limits => {
                for limit in limits.as_array().expect("all else are limits") {
                    pairs.push(("limit", limit["name"].as_str().expect("a name is a text")));
                    pairs.extend(limit["global"].as_bool().and_then(|is_global| is_global.then_some(("global", ""))));
                    let words = limit["words"].as_array().into_iter().flatten();
                    pairs.extend(words.filter_map(|word| Some((word[0].as_str()?, word[1].as_str()?))));
                }
            }
        }
    }
    pairs.into_iter().map(|(name, value)| format!("{name}\0{value}\0")).collect()
}

const KINDS: [&str; 6] = ["token_bucket", "fixed_window", "stepped_bucket", "sliding_window", "concurrency", "wallet"];
const SCENES: usize = 200;
const CALLS: usize = 50;
const STEPS: usize = SCENES * CALLS;
const SEED: u64 = 7;
/// In microseconds since 1970.
const START: u64 = 1_735_689_600_000_000;
