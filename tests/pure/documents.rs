//! The documents name files, functions and tests that are there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_files_that_documents_name_exist() {
    for page in pages() {
        let text = read(&page);
        for path in spans(&text).filter(|span| is_path(span)) {
            assert!(Path::new(ROOT).join(path).exists(), "{} names {path}", page.display());
        }
    }
}

/// `examples/service_tests.rs` runs what it shows, `promtool` the alert, and a test of the command what that prints.
#[test]
fn the_page_of_the_service_quotes_what_runs() {
    let flat = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let page = read("docs/service.md");
    let sources = flat(&["examples/service.rs", "examples/service_tests.rs", "ops/alerts.yml"].map(read).concat());
    let blocks = page.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap());
    let quotes: Vec<_> = blocks.filter(|(kind, _)| *kind != "console").map(|(_, quote)| flat(quote)).collect();
    assert!(quotes.len() > 6, "{quotes:?}");
    for quote in quotes {
        assert!(sources.contains(&quote), "nothing runs this:\n{quote}");
    }
}

/// A forge knows the definitions of the page itself.
#[test]
fn the_links_of_documents_lead_somewhere() {
    for page in pages() {
        let text = read(&page);
        for name in links(&text, "][") {
            assert!(text.contains(&format!("\n[{name}]: ")), "{} does not define {name}", page.display());
        }
        for link in links(&text, "](").chain(links(&text, "]: ")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            if file.extension().is_some_and(|extension| extension == "md") {
                let is_there = heading.is_empty() || headings(&read(file)).any(|name| name == heading);
                assert!(is_there, "{} leads to {link}", page.display());
            }
        }
    }
}

/// Rustdoc has no files, and knows the definitions of `_guide.md`, which come before those of the page.
#[test]
fn the_links_of_guides_lead_somewhere_in_rustdoc_too() {
    let definitions = read("src/_guide.md");
    let no_guides = ["AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];
    let guides = pages().filter(|page| !no_guides.iter().any(|name| page.ends_with(name)));
    let guides: String = guides.map(read).collect();
    let inline = links(&guides, "](").find(|link| link.contains(".md"));
    assert_eq!(inline, None, "rustdoc cannot follow it: write [text][file.md#heading], and define that");
    for name in links(&guides, "][").filter(|name| name.contains(".md")) {
        assert!(definitions.contains(&format!("[{name}]: ")), "src/_guide.md does not define {name}");
    }
    let of_crate = read("src/lib.rs").replace("//! ", "");
    for definition in definitions.lines() {
        let (name, page) = definition[1..].split_once("]: ").unwrap();
        let (file, heading) = name.split_once(".md").unwrap();
        if file == "README" {
            let heading = page.strip_prefix("crate").unwrap().trim_start_matches('#');
            let is_there = heading.is_empty() || headings(&of_crate).any(|name| name == heading);
            assert!(is_there, "{definition}");
        } else {
            assert_eq!(page, format!("crate::_guide::{}{heading}", file.to_lowercase()));
        }
        assert!(heading.is_empty() || guides.contains(&format!("][{name}]")), "no guide leads to {name}");
    }
}

#[test]
fn each_job_of_the_forge_is_a_command_and_says_what_it_protects() {
    let (workflow, commands) = (read(".github/workflows/ci.yml"), read("dev"));
    let (_, jobs) = workflow.split_once("\n        job:\n").unwrap();
    let mut of_command = "";
    for job in jobs.lines().map_while(|line| line.strip_prefix("          - ")) {
        let (job, reason) = job.split_once(" # ").unwrap_or((job, ""));
        let command = job.split(' ').next().unwrap();
        assert!(commands.contains(&format!("\n        {command}) ")), "./dev {job}");
        assert!(reason.ends_with('.') || command == of_command, "{job} protects what?");
        of_command = command;
    }
    assert!(!of_command.is_empty());
}

/// In its first page each path has the names behind it that the file declares: `src/plan/mod.rs` (`Plan::decide`).
#[test]
fn each_station_that_the_design_names_is_in_its_file() {
    let design = read("DESIGN.md");
    let (first_page, _) = design.split_once("## Layers").unwrap();
    let first_page = first_page.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut stations = 0;
    for (before, after) in first_page.match_indices("` (`").map(|(at, _)| first_page.split_at(at)) {
        let path = before.rsplit('`').next().unwrap();
        let (names, _) = after[2..].split_once(')').unwrap();
        let source = read(path);
        for name in spans(names) {
            assert!(name.split("::").all(|part| declares(&source, part)), "{path} has no {name}");
            stations += 1;
        }
    }
    assert!(stations > 20, "{stations} names were found");
}

#[test]
fn the_files_of_a_decision_are_as_many_as_the_design_says() {
    let design = read("DESIGN.md");
    let (_, section) = design.split_once("\n## The files of a decision\n").unwrap();
    let (said, lists) = section.split_once("\n- ").unwrap();
    let lists = lists.split("\n\n").next().unwrap().split("\n- ");
    let count = |list: &str| {
        let files: HashSet<_> = spans(list).filter(|span| is_path(span)).collect();
        assert!(list.contains(&format!("({})", files.len())), "there are {} files: {list}", files.len());
        files.len()
    };
    let [both, limiter, gate] = lists.map(count).collect::<Vec<_>>()[..] else { panic!("there are three lists") };
    for (way, files) in [("limiter", both + limiter), ("gate", both + gate)] {
        assert!(said.contains(&format!("{files} ")), "{files} files through the {way}: {said}");
    }
}

#[test]
fn each_promise_names_tests_that_are_there() {
    let guarantees = read("docs/guarantees.md");
    let everywhere: String = files(&Path::new(ROOT).join("tests"), "rs").into_iter().map(read).collect();
    for paragraph in guarantees.replace("\n- ", "\n\n- ").split("\n\n") {
        let (paths, others): (Vec<_>, Vec<_>) = spans(paragraph).partition(|span| is_path(span));
        let is_list_of_tests = ["- `tests/", "- `fuzz/"].iter().any(|list| paragraph.starts_with(list));
        let source = if is_list_of_tests { paths.into_iter().map(read).collect() } else { everywhere.clone() };
        for name in others.into_iter().filter(|name| is_list_of_tests || name.matches('_').count() > 3) {
            let is_there = match name.strip_prefix('…') {
                Some(end) => source.contains(&format!("{end}(")),
                None => source.contains(&format!("fn {name}(")),
            };
            assert!(is_there, "there is no test {name}");
        }
    }
}

/// `./dev test` leaves out what takes long, and still asks for each promise.
#[test]
fn each_promise_is_tested_by_the_short_run() {
    let (guarantees, dev) = (read("docs/guarantees.md"), read("dev"));
    let (_, skipped) = dev.split_once("\nskip_long='").unwrap();
    let skipped: Vec<_> = skipped.split('\'').next().unwrap().split_whitespace().skip(1).step_by(2).collect();
    assert!(skipped.contains(&"orders::"), "{skipped:?}");
    let promises =
        guarantees.split("\n## ").filter(|section| section.starts_with(|first: char| first.is_ascii_digit()));
    let mut count = 0;
    for promise in promises {
        let in_short_run = promise.split("\n- `tests/").skip(1).any(|list| {
            let mut spans = list.split('`').step_by(2);
            let path = spans.next().unwrap().replace('/', "::");
            skipped.iter().all(|skip| !path.contains(skip.trim_end_matches("::")))
        });
        assert!(in_short_run, "no test of the short run is named for {}", promise.lines().next().unwrap());
        count += 1;
    }
    assert_eq!(count, 9);
}

/// Where nobody but this test misses a verb.
#[test]
fn each_verb_is_named_where_verbs_are_listed() {
    let limiter = read("src/limiter/verbs.rs");
    let lists = [
        "CHANGELOG.md",
        "docs/api/tollgate.txt",
        "src/lib.rs",
        "tests/postgres/gate/verbs/kinds/scripts.rs",
        "tests/postgres/orders/verb.rs",
    ];
    let lists = lists.map(|path| (path, read(path)));
    let named = limiter.split("\n    pub async fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
    let verbs: Vec<_> = named.filter(|verb| !verb.ends_with("_each")).collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    for (path, text) in &lists {
        let words: HashSet<_> = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
        for verb in &verbs {
            assert!(words.contains(verb), "{path} does not name `{verb}`");
        }
    }
}

#[test]
fn each_kind_of_limit_is_there_to_choose() {
    let page = read("docs/choosing.md");
    for kind in tollgate::LimitKind::ALL {
        let word = serde_json::to_string(&kind).unwrap().replace('"', "`");
        assert!(page.contains(&format!("\n| {word} | ")), "docs/choosing.md has no row for {word}");
    }
}

/// PostgreSQL lets everybody call a new function, from the commit on.
#[test]
fn each_example_of_a_function_with_its_owners_rights_revokes_first() {
    let mut found = 0;
    for page in pages() {
        let text = read(&page);
        for block in text.split("```sql").skip(1).filter_map(|rest| rest.split("```").next()) {
            for made in block.split("create ").filter(|made| made.contains("security definer")) {
                let name = made.trim_start_matches("or replace ").split([' ', '(']).nth(1).unwrap();
                let begun = block.split(&format!("create function {name}")).next().unwrap().contains("begin;");
                let revoked = format!("revoke execute on function {name} from public;");
                let in_time = block.split("commit;").next().unwrap().contains(&revoked);
                assert!(begun && in_time, "{}: {name}", page.display());
                found += 1;
            }
        }
    }
    assert_eq!(found, 2);
}

/// The pages for people that are part of the repository.
fn pages() -> impl Iterator<Item = PathBuf> {
    let pages = ["AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "README.md", "SECURITY.md"];
    pages.map(|page| Path::new(ROOT).join(page)).into_iter().chain(files(&Path::new(ROOT).join("docs"), "md"))
}

/// Whether a line of code has a name behind a word that declares it.
fn declares(source: &str, name: &str) -> bool {
    source.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.any(|word| matches!(word, "enum" | "fn" | "impl" | "struct")) && words.any(|word| word == name)
    })
}

/// The text behind each opening of a link, up to the end of the link.
fn links<'t>(text: &'t str, opening: &str) -> impl Iterator<Item = &'t str> {
    text.match_indices(opening).map(|(at, opening)| text[at + opening.len()..].split([')', ']', '\n']).next().unwrap())
}

/// The names of a page's headings in a link, as a forge and rustdoc make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.split("```").step_by(2).flat_map(str::lines);
    let headings = lines.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| {
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
    })
}

/// Texts in backticks, outside of blocks of code.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

/// Whether a text is a path from the root of the repository. One with `NAME` in it is a pattern.
fn is_path(span: &str) -> bool {
    let (root, _) = span.split_once('/').unwrap_or_default();
    let roots = [
        "benches",
        "cli",
        "docs",
        "embedded",
        "examples",
        "fuzz",
        "http",
        "migrations",
        "ops",
        "simulation",
        "src",
        "tests",
        "web",
    ];
    roots.contains(&root) && !span.contains(['*', ' ']) && !span.contains("NAME")
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files of a kind in a folder, and in its folders.
pub(crate) fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, others): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = others.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == kind));
    here.chain(folders.iter().flat_map(|folder| files(folder, kind))).collect()
}
