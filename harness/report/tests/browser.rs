//! Pages in a real browser, where one is installed: nothing is cut off or unreadable, in light and
//! dark, on a wide and on a narrow screen. Without Chromium the tests say so and check nothing.
//!
//! `cargo test --release -p pb-report --test browser -- --ignored` also takes a picture of each
//! panel, for eyes.

#[allow(dead_code, reason = "other tests use more of it")]
mod suite_dir;
#[allow(dead_code, reason = "other tests use more of it")]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pb_judge::run::judge;
use pb_report::suite::SuiteReport;
use serde_json::Value;
use support::{Setting, notes, run};

/// Tenths of a second that a browser may take before it is ended.
const PATIENCE: usize = 1200;

/// Measures a page: what sticks out, what lies on what, what cannot be read. In the page, because
/// only the browser knows where text ends up.
const MEASURE: &str = r#"<script>
addEventListener("load", () => {
  const box = (e) => e.getBoundingClientRect(), found = {};
  found.width = innerWidth;
  found.scroll = document.documentElement.scrollWidth;
  const inside = (t, s) => t.left >= s.left - 1 && t.right <= s.right + 1 &&
    t.top >= s.top - 1 && t.bottom <= s.bottom + 1;
  found.outside = []; found.overlaps = [];
  for (const svg of document.querySelectorAll("svg")) {
    const all = [...svg.querySelectorAll("text")], frame = box(svg);
    for (const text of all)
      if (!inside(box(text), frame)) found.outside.push(text.textContent);
    const plain = all.filter((t) => !t.classList.contains("number"));
    plain.forEach((a, i) => plain.slice(i + 1).forEach((b) => {
      const p = box(a), q = box(b);
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 2 && y > 3) found.overlaps.push(a.textContent + " | " + b.textContent);
    }));
  }
  found.unnamed = [...document.querySelectorAll("svg")].filter((svg) =>
    !(svg.getAttribute("aria-labelledby") || "x").split(" ").every((id) =>
      document.getElementById(id) && document.getElementById(id).textContent)).length;
  found.levels = [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1]);
  // A picture that is wider than the screen scrolls in its box, at a size that can be read.
  found.small = [...document.querySelectorAll("svg")].filter((svg) => box(svg).width < 600).length;
  found.captions = [...document.querySelectorAll("figcaption")].filter((e) =>
    box(e).right > innerWidth + 1).length;
  found.sections = [...document.querySelectorAll("main section")].map((s) => box(s).height);
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) =>
    v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  found.faint = [];
  for (const e of document.querySelectorAll("td,th,p,h1,h2,h3,figcaption,summary,li,a")) {
    if (!e.textContent.trim()) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.faint.push(ratio.toFixed(2) + " " + e.textContent.slice(0, 40));
  }
  document.body.innerHTML = "";
  const pre = document.createElement("pre");
  pre.id = "found"; pre.textContent = JSON.stringify(found);
  document.body.append(pre);
});
</script>"#;

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let places = std::env::split_paths(&path);
    let all = places.flat_map(|dir| names.map(|name| dir.join(name)));
    all.into_iter().find(|file| file.is_file())
}

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs the browser; what it printed, or `None` when it cannot run here or takes for ever.
fn chromium(name: &str, page: &Path, more: &[String]) -> Option<String> {
    let program = browser()?;
    let profile = temporary(&format!("profile-{name}"));
    let out = temporary(&format!("{name}.out"));
    let mut child = Command::new(program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-sync",
            "--hide-scrollbars",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .stdout(std::fs::File::create(&out).ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut ended = None;
    for _ in 0..PATIENCE {
        ended = child.try_wait().ok()?;
        if ended.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = child.kill();
    let _ = child.wait();
    let _ = std::fs::remove_dir_all(profile);
    ended?;
    std::fs::read_to_string(out).ok()
}

/// What the browser found on the page, or `None` where there is none that runs.
fn measured(name: &str, page: &str, width: u32, dark: bool) -> Option<Value> {
    let file = temporary(&format!("{name}-{width}-{dark}.html"));
    // What is folded has no place on the page that could be measured.
    let page = page.replace("<details>", "<details open>");
    std::fs::write(&file, page.replace("</body>", &format!("{MEASURE}</body>"))).unwrap();
    let more = [
        "--dump-dom".to_owned(),
        format!("--window-size={width},1600"),
        format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)),
    ];
    let dom = chromium(&format!("{name}-{width}-{dark}"), &file, &more)?;
    let text = dom
        .split("<pre id=\"found\">")
        .nth(1)?
        .split("</pre>")
        .next()?;
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// `name` is the test's own: tests run at the same time.
fn suite_page(name: &str) -> String {
    let dir = suite_dir::write(name, &suite_dir::suite());
    SuiteReport::open(&dir).unwrap().html().unwrap()
}

fn judged_page() -> String {
    let setting = Setting::default();
    let data = run(&setting);
    let verdict = judge(&data, &notes(&setting));
    pb_report::html(&data, &verdict).unwrap()
}

/// Nothing sticks out, nothing lies on something else, everything can be read.
fn assert_sound(found: &Value, what: &str) {
    let empty = |key: &str| {
        let list = found[key].as_array().unwrap();
        assert!(list.is_empty(), "{what}: {key}: {list:?}");
    };
    ["outside", "overlaps", "faint"].into_iter().for_each(empty);
    assert_eq!(found["unnamed"], 0, "{what}: a picture without a name");
    assert_eq!(found["small"], 0, "{what}: a picture too small to read");
    assert_eq!(found["captions"], 0, "{what}: a caption that is cut off");
    let (scroll, width) = (found["scroll"].as_f64(), found["width"].as_f64());
    assert!(scroll <= width, "{what}: {scroll:?} px wide on {width:?}");
    let levels: Vec<u64> = found["levels"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert_eq!(levels.first(), Some(&1), "{what}");
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{what}: {levels:?}"
    );
}

#[test]
fn pages_are_whole_and_readable_in_a_browser() {
    for (name, page) in [
        ("suite", suite_page("browser-whole")),
        ("judged", judged_page()),
    ] {
        for (width, dark) in [(1200, false), (1200, true), (390, false)] {
            let what = format!("{name} page, {width} px, dark: {dark}");
            match measured(name, &page, width, dark) {
                Some(found) => assert_sound(&found, &what),
                None => eprintln!("{what}: not checked, no Chromium runs here"),
            }
        }
    }
}

/// That the measuring itself can find something.
#[test]
fn faults_planted_in_a_page_are_found() {
    let page = suite_page("browser-faults");
    let text = page.find("<text ").unwrap();
    let planted = format!(
        "{}<text x=\"-90\" y=\"5\">PLANTED</text>{}",
        &page[..text],
        &page[text..]
    );
    let planted = planted.replace("--ink: #1a1d21", "--ink: #e0e0e0");
    let planted = planted.replace(
        "<h2 id=\"s2\">",
        "<p style=\"width:3000px;max-width:none\">w</p><h2 id=\"s2\">",
    );
    let Some(found) = measured("planted", &planted, 1200, false) else {
        eprintln!("not checked: no Chromium runs here");
        return;
    };
    assert!(found["outside"].to_string().contains("PLANTED"), "{found}");
    assert!(!found["faint"].as_array().unwrap().is_empty());
    assert!(found["scroll"].as_f64() > found["width"].as_f64());
}

/// Pictures of all panels of a page: of the file PREFILLBENCH_PAGE, of the suite's directory
/// PREFILLBENCH_SUITE, or of the pages of the tests.
#[test]
#[ignore = "makes pictures to look at; needs Chromium"]
fn a_picture_of_each_panel() {
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let suite = given("PREFILLBENCH_SUITE");
    let pages: Vec<(String, String)> = match (given("PREFILLBENCH_PAGE"), suite) {
        (Some(file), _) => vec![("given".to_owned(), std::fs::read_to_string(file).unwrap())],
        (None, Some(dir)) => {
            let report = SuiteReport::open(&dir).unwrap();
            let page = report.html().unwrap();
            std::fs::write(temporary("given.html"), &page).unwrap();
            std::fs::write(temporary("given.md"), report.markdown()).unwrap();
            vec![("given".to_owned(), page)]
        }
        (None, None) => vec![
            ("suite".to_owned(), suite_page("browser-pictures")),
            ("judged".to_owned(), judged_page()),
        ],
    };
    for (name, page) in pages {
        let Some(found) = measured(&name, &page, 1100, false) else {
            eprintln!("no pictures: no Chromium runs here");
            return;
        };
        let heights = found["sections"].as_array().unwrap();
        for (number, height) in heights.iter().enumerate() {
            for dark in [false, true] {
                let only = format!(
                    "<style>header,nav,main>section{{display:none}}\
                     main>section:nth-of-type({}){{display:block}}</style></head>",
                    number + 1
                );
                let file = temporary(&format!("{name}-panel.html"));
                std::fs::write(&file, page.replace("</head>", &only)).unwrap();
                let shade = if dark { "dark" } else { "light" };
                let picture = temporary(&format!("{name}-{number}-{shade}.png"));
                let more = [
                    format!("--screenshot={}", picture.display()),
                    format!(
                        "--window-size=1100,{}",
                        height.as_f64().unwrap() as u32 + 110
                    ),
                    format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)),
                ];
                chromium("panel", &file, &more).expect("a browser that ran before");
                let bytes = std::fs::read(&picture).expect("a picture");
                assert!(bytes.starts_with(b"\x89PNG"), "{}", picture.display());
                eprintln!("{}", picture.display());
            }
        }
    }
}
