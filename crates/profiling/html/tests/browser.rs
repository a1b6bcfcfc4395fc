//! Tests the page of a profile in a real browser: its script runs, all parts are present, keys work, and
//! nothing is requested over the network, whatever the profile contains. Skipped if no browser is installed;
//! `scripts/install-packages test` installs one.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use uncopy_html::profile_page;
use uncopy_profile::Profile;

const SAMPLE: &str = include_str!("../../profile/samples/redis-set.json");
/// Time limit for a page, which normally takes the browser one second.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the path of a browser that can run headless.
fn browser() -> Option<PathBuf> {
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found = known.iter().map(PathBuf::from).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: there is no chromium here (Debian's package chromium)");
    }
    found
}

/// A temporary directory, removed when the test ends.
struct TempDir(PathBuf);

impl TempDir {
    fn make(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uncopy-html-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process, killed when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// HTTP server on a port of its own that counts and refuses all requests.
struct Server {
    requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> (Self, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("not blocking");
        let port = listener.local_addr().expect("its address").port();
        let (requests, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stopped) = (Arc::clone(&requests), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        count.fetch_add(1, Ordering::Relaxed);
                        let _ = stream.write_all(
                            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                        );
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        (Self { requests, stop, thread: Some(thread) }, port)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Describes the state of all processes whose command line contains `word`, including kernel stacks.
fn process_states(word: &str) -> String {
    let read = |pid: &Path, file: &str| std::fs::read_to_string(pid.join(file)).unwrap_or_default();
    let of_thread = |thread: &Path| {
        let stat = read(thread, "stat");
        format!("  {} wchan {}\n{}", stat.trim(), read(thread, "wchan"), read(thread, "stack"))
    };
    let entries =
        |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(Path::new("/proc"))
        .filter(|pid| read(pid, "cmdline").contains(word))
        .map(|pid| {
            let threads: String = entries(&pid.join("task")).map(|thread| of_thread(&thread)).collect();
            format!("{} {}\n{threads}", pid.display(), read(&pid, "cmdline").replace('\0', " "))
        })
        .collect()
}

/// Returns the document after its script has run. A browser that hangs (seen once, cause unknown) is reported
/// and restarted once.
fn dump(browser: &Path, temp_dir: &TempDir, page: &str) -> String {
    let file = temp_dir.0.join("page.html");
    std::fs::write(&file, page).expect("the page");
    let document = (0..2).find_map(|attempt| run(browser, temp_dir, &file, attempt));
    document.expect("no browser ended, see above")
}

fn run(browser: &Path, temp_dir: &TempDir, page: &Path, attempt: u32) -> Option<String> {
    let (out, log) = (temp_dir.0.join("dom.html"), temp_dir.0.join("log"));
    let profile = temp_dir.0.join(format!("profile-{attempt}"));
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--virtual-time-budget=3000", "--dump-dom"])
        .arg("--window-size=1280,720")
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .stdout(std::fs::File::create(&out).expect("a file"))
        .stderr(std::fs::File::create(&log).expect("a file"));
    let started = Instant::now();
    let mut running = KillOnDrop(command.spawn().expect("the browser"));
    while running.0.try_wait().expect("the browser's state").is_none() {
        if started.elapsed() > TIMEOUT {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let doing = process_states(&temp_dir.0.to_string_lossy());
            println!(
                "the browser did not end within {TIMEOUT:?}; it said\n{said}\nand its processes are\n{doing}"
            );
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(std::fs::read_to_string(&out).expect("the document"))
}

fn sample() -> Profile {
    Profile::parse(SAMPLE.as_bytes()).expect("a profile")
}

/// Returns `page` without its policy, with the test's `script` after the page's own.
fn with_script(page: &str, script: &str) -> String {
    let (before, rest) = page.split_once("<meta http-equiv=\"Content-Security-Policy\"").expect("a policy");
    let (_, after) = rest.split_once('>').expect("its end");
    format!("{before}{}<script>{script}</script>", after.replace("</body></html>", ""))
}

#[test]
fn the_script_runs_under_the_policy_and_every_part_is_there() {
    let Some(browser) = browser() else { return };
    let temp_dir = TempDir::make("parts");
    let dom = dump(&browser, &temp_dir, &profile_page(&sample()));
    assert!(dom.contains("data-ready=\"true\""), "the script did not run: {dom}");
    // Three stacks share the root, __libc_start_call_main and main; one of them is short.
    for (part, least) in
        [("role=\"treeitem\"", 10), ("class=\"node ", 6), ("class=\"ribbon ", 6), ("<caption>", 5)]
    {
        assert!(dom.matches(part).count() >= least, "{part}: {dom}");
    }
    assert!(dom.contains("<button type=\"button\">bytes</button>"), "headings sort");
    assert_eq!(dom.matches("tabindex=\"0\" ").count() + dom.matches("tabindex=\"0\">").count(), {
        let nodes = dom.matches("class=\"node ").count();
        let boxes = dom.matches("class=\"scroll\"").count();
        // One frame of the flame graph is in the tab order; arrow keys reach the others.
        nodes + boxes + 1
    });
}

#[test]
fn keys_zoom_into_the_flame_graph_and_headings_sort() {
    let Some(browser) = browser() else { return };
    let temp_dir = TempDir::make("keys");
    let script = r#"
        const graph = document.querySelector("svg.flame"), told = [];
        const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
        const at = () => document.activeElement.getAttribute("aria-label").split(",")[0].split(":")[0];
        const shown = () => Array.from(graph.children).filter((frame) => !frame.hasAttribute("hidden")).length;
        const all = shown();
        graph.querySelector("[tabindex='0']").focus();
        for (let step = 0; step < 5; step++) key("ArrowDown");
        told.push(at());
        key("ArrowRight"); told.push(at());
        key("Enter"); told.push(document.activeElement.getAttribute("width"), shown() < all);
        key("ArrowUp"); told.push(at());
        key("Escape"); told.push(at(), shown() === all, document.activeElement.getAttribute("width"));
        const table = Array.from(document.querySelectorAll("table.sortable")).pop().closest("section").previousElementSibling.querySelector("table.sortable");
        const heads = Array.from(table.tHead.rows[0].cells);
        const column = heads.findIndex((head) => head.textContent === "bytes");
        const values = () => Array.from(table.tBodies[0].rows).map((row) => Number(row.cells[column].dataset.value));
        heads[column].querySelector("button").click();
        const down = values(); told.push(heads[column].getAttribute("aria-sort"), down[0] === Math.max(...down));
        heads[column].querySelector("button").click();
        told.push(heads[column].getAttribute("aria-sort"), values()[0] === Math.min(...down));
        document.body.append("TOLD " + JSON.stringify(told));
    "#;
    // The table of processes has one row and is not sortable, so the table of sites is the last sortable one.
    let script =
        script.replace(".closest(\"section\").previousElementSibling.querySelector(\"table.sortable\")", "");
    let dom = dump(&browser, &temp_dir, &with_script(&profile_page(&sample()), &script));
    let told = dom.rsplit("TOLD ").next().unwrap_or_default();
    let told = told.split("</body>").next().unwrap_or_default().trim();
    assert_eq!(
        told,
        r#"["processCommand","readQueryFromClient","100%",true,"aeProcessEvents","all copied bytes",true,"100%","descending",true,"ascending",true]"#
    );
}

#[test]
fn the_verdict_and_its_figures_are_above_the_fold_whatever_the_names() {
    let Some(browser) = browser() else { return };
    let temp_dir = TempDir::make("fold");
    let mut long = sample();
    long.command = vec!["/opt/".to_owned() + &"name ".repeat(2000); 50];
    long.warnings = vec!["many words ".repeat(100); 40];
    for profile in [sample(), long] {
        let script = r#"
            const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
            const figures = Array.from(document.querySelectorAll(".facts.main dd")).map((figure) => figure.textContent);
            const is_first = document.querySelector("header > :first-child").matches("h1.verdict");
            const fits = bottom(".verdict") < bottom(".facts.main") && bottom(".facts.main") <= Math.min(720, innerHeight);
            document.body.append("TOLD " + JSON.stringify([is_first, fits, innerWidth <= 1280, figures]));
        "#;
        let dom = dump(&browser, &temp_dir, &with_script(&profile_page(&profile), script));
        let told =
            dom.rsplit("TOLD ").next().and_then(|told| told.split("</body>").next()).unwrap_or_default();
        assert_eq!(told.trim(), r#"[true,true,true,["84 % of now","1.20 × now","60,000 of 60,012"]]"#);
    }
}

#[test]
fn nothing_is_asked_from_anywhere_whatever_names_say() {
    let Some(browser) = browser() else { return };
    let temp_dir = TempDir::make("quiet");
    let (server, port) = Server::start();
    let image = format!("<img src=\"http://127.0.0.1:{port}/\">");

    let mut profile = sample();
    let names = [
        image.clone(),
        format!("\">{image}<script src=http://127.0.0.1:{port}/></script>"),
        format!("</title></style></script></svg>{image}"),
        format!("<link rel=stylesheet href=http://127.0.0.1:{port}/>"),
    ];
    for (at, name) in names.iter().cycle().take(40).enumerate() {
        for frame in profile.frames.iter_mut().skip(at % 4).step_by(4) {
            frame.function.clone_from(name);
            frame.file = Some(name.clone());
        }
        let site = at % profile.sites.len();
        let site = &mut profile.sites[site];
        (site.name, site.place) = (name.clone(), name.clone());
        (site.line, site.why) = (Some(name.clone()), name.clone());
        profile.warnings.push(name.clone());
        profile.command.push(name.clone());
        profile.modules[at % 2].path.clone_from(name);
        profile.operations[0].name.clone_from(name);
    }
    let page = profile_page(&profile);
    let dom = dump(&browser, &temp_dir, &page);
    assert!(dom.contains("data-ready=\"true\"") && !dom.contains("<img"), "{dom}");
    assert_eq!(server.requests(), 0, "the page of a hostile profile was asking");

    // Even if a name became markup, the policy would block requests.
    let broken = page.replacen("<main>", &format!("<main>{image}"), 1);
    assert!(dump(&browser, &temp_dir, &broken).contains("<img"));
    assert_eq!(server.requests(), 0, "the policy let a request through");

    // Control: without the policy the listener receives the request.
    assert!(dump(&browser, &temp_dir, &with_script(&broken, "")).contains("<img"));
    assert!(server.requests() > 0, "the control was not asking: this test shows nothing");
}
