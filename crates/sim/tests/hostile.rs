//! Whatever strangers send: nothing panics, and what is allocated meanwhile stays within a multiple of
//! what was sent. The corpus is that of `fuzz/`.

#![expect(
    unsafe_code,
    clippy::unwrap_used,
    reason = "an allocator that counts; tests fail by panicking"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::PathBuf,
};

use proptest::{prelude::*, sample::Index};
use shuntyard_sim::fuzz::{TARGETS, Target};

thread_local! {
    /// Bytes that this thread holds, and the most that it held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // A thread that is going has nothing to count any more.
    HELD.try_with(|held| {
        let now = held.get().0 + bytes;
        held.set((now, held.get().1.max(now)));
    })
    .ok();
}

fn signed(layout: Layout) -> isize {
    layout.size().cast_signed()
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs a target and returns the most that it allocated at once.
fn allocated(target: fn(&[u8]), bytes: &[u8]) -> usize {
    let before = HELD.get().0;
    HELD.set((before, before));
    target(bytes);
    (HELD.get().1 - before).cast_unsigned()
}

/// What a target may allocate at once for an input of so many bytes.
///
/// Parsed JSON is up to a hundred times as long as its text (`{"":0}` is a whole map), and is held
/// two or three times while it is compared. A pattern is compiled to an automaton.
fn allowed(name: &str, input: usize) -> usize {
    const KIBIBYTE: usize = 1024;
    match name {
        "agent_frame" | "webhook" => 64 * KIBIBYTE + 400 * input,
        // A matrix is expanded, and selectors are compiled, within limits of their own.
        "plan" => 80 * KIBIBYTE * KIBIBYTE + 400 * input,
        // Most is taken by many short ones: 13 KiB each, whatever is in it.
        "globs" => 512 * KIBIBYTE + 16 * KIBIBYTE * input,
        "handoff" => KIBIBYTE + 40 * input,
        _ => panic!("say how much {name} may allocate"),
    }
}

fn check((name, target): Target, bytes: &[u8], what: &str) {
    let (allocated, allowed) = (allocated(target, bytes), allowed(name, bytes.len()));
    assert!(allocated <= allowed, "{name} {what}: {allocated} bytes for {} bytes", bytes.len());
}

/// The inputs of a target, by file name.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut inputs: Vec<_> = files
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 10, "the corpus of {name} is small");
    inputs
}

#[test]
fn the_corpus_finds_nothing() {
    for target in TARGETS {
        for (file, bytes) in corpus(target.0) {
            check(target, &bytes, &file);
        }
    }
}

#[test]
fn every_target_is_one_of_cargo_fuzz() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
    names.sort();
    let files = fs::read_dir(folder.join("fuzz_targets")).unwrap();
    let files = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files, names);
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}

/// One change to some bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    /// Repeats a stretch.
    Repeat(Index, Index, u8),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len() + 1;
        let stretch = |a: &Index, b: &Index| {
            let (a, b) = (a.index(len), b.index(len));
            a.min(b)..a.max(b)
        };
        match self {
            Self::Set(at, byte) => {
                let at = at.index(len);
                bytes.resize(bytes.len().max(at + 1), 0);
                bytes[at] = *byte;
            }
            Self::Insert(at, more) => {
                let at = at.index(len);
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Remove(from, to) => drop(bytes.drain(stretch(from, to))),
            Self::Repeat(from, to, times) => {
                let stretch = stretch(from, to);
                let more = bytes[stretch.clone()].repeat((*times).into());
                bytes.splice(stretch.end..stretch.end, more);
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let more = prop::collection::vec(any::<u8>(), 1..9);
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), more).prop_map(|(at, more)| Change::Insert(at, more)),
        (at(), at()).prop_map(|(from, to)| Change::Remove(from, to)),
        (at(), at(), 0..20u8).prop_map(|(from, to, times)| Change::Repeat(from, to, times)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_find_nothing(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for target in TARGETS {
            check(target, &bytes, "any bytes");
        }
    }

    #[test]
    fn a_frame_of_any_header_finds_nothing(header in "[\\[\\]{}\":,0-9a-z]{0,80}", payload: Vec<u8>) {
        let len = u32::try_from(header.len()).unwrap().to_be_bytes();
        check(TARGETS[0], &[&len[..], header.as_bytes(), &payload].concat(), "a frame");
    }

    #[test]
    fn globs_of_special_characters_find_nothing(text in "[a*?/!\\[\\]{},\\\\\n-]{0,60}") {
        check(TARGETS[3], text.as_bytes(), &text);
    }

    #[test]
    fn a_changed_corpus_finds_nothing(
        which: Index, input: Index, changes in prop::collection::vec(change(), 1..6),
    ) {
        let target = TARGETS[which.index(TARGETS.len())];
        let inputs = corpus(target.0);
        let (file, mut bytes) = inputs[input.index(inputs.len())].clone();
        for change in &changes {
            change.apply(&mut bytes);
            bytes.truncate(64 * 1024);
        }
        if target.0 == "agent_frame" {
            // A wrong length would hide everything behind it.
            let header = bytes.iter().rposition(|&b| b == b'}').map_or(0, |end| end + 1);
            if let Some(header) = header.checked_sub(4) {
                bytes[..4].copy_from_slice(&u32::try_from(header).unwrap().to_be_bytes());
            }
        }
        check(target, &bytes, &file);
    }
}

#[test]
fn large_inputs_take_a_multiple_of_their_length() {
    let lines =
        |count: usize| (0..count).map(|i| format!("dir{i}/*.rs\n")).collect::<Vec<_>>().concat();
    let frame = |facts: &str| {
        let header = format!(
            r#"{{"type":"facts","id":{{"job":"job_01hf7yat00ew3re1r70w3ge1r7","attempt":1}},
            "key":"","facts":[{{"seq":1,"fact":{{"type":"ended","at":0,"outcome":"success",
            "ends":{{}},"outputs":[{facts}]}}}}]}}"#
        );
        let len = u32::try_from(header.len()).unwrap().to_be_bytes();
        [&len[..], header.as_bytes()].concat()
    };
    let plan = |values: &str| {
        let job = format!(r#"{{"name":"j","steps":[],"matrix":{{"axes":{{"list":[{values}]}}}}}}"#);
        format!(r#"{{"version":1,"workflows":[{{"name":"w","file":"f","jobs":[{job}]}}]}}"#)
    };
    let many = |what: &str| vec![what; 50_000].join(",");
    let inputs = [
        (TARGETS[0], frame(&many("[]"))),
        (TARGETS[0], frame(&many(r#"{"":0}"#))),
        (TARGETS[2], plan(&many(r#"{"":0}"#)).into_bytes()),
        (TARGETS[3], lines(10_000).into_bytes()),
        (TARGETS[3], lines(10_001).into_bytes()),
        (TARGETS[3], format!("{}\nx", "[a-z0-9]".repeat(20_000)).into_bytes()),
        (TARGETS[3], format!("{}\nx", "{a,b}".repeat(20_000)).into_bytes()),
        (TARGETS[4], "A=1\n".repeat(100_000).into_bytes()),
        (TARGETS[4], format!("A<<E\n{}E", "\n".repeat(400_000)).into_bytes()),
    ];
    for (target, bytes) in inputs {
        let times = allocated(target.1, &bytes) / bytes.len();
        println!("{}: {times} times {} bytes", target.0, bytes.len());
        check(target, &bytes, "a large input");
    }
}
