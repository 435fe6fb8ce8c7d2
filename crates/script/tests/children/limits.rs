//! Each limit at its edge, and code that wants to do harm.

use shuntyard_script::{EvaluateError, PLAN_OUTPUT_BYTES_MAX};

use crate::{evaluate_one, faults_of};

fn fault(body: &str) -> String {
    faults_of(evaluate_one(body))
}

const HARMLESS: &str = "export default workflow('w', { jobs: [job({ run: sh('x') })] });";

#[test]
fn an_endless_loop_ends_with_its_line() {
    // PLAN_TIME_MAX
    let text = fault("const a = [1];\nwhile (true) {\n  a.at(0);\n}\n");
    assert!(text.starts_with(".shuntyard/workflows/w.ts:5:"), "{text}");
    assert!(text.contains("longer than 5 s of processor time"), "{text}");
}

#[test]
fn an_endless_loop_cannot_be_caught() {
    let text = fault("for (;;) { try { for (;;) {} } catch {} }");
    assert!(text.contains("longer than 5 s"), "{text}");
}

#[test]
fn an_endless_loop_in_a_promise_ends() {
    // LATE_JOBS_MAX
    let text = fault(&format!(
        "const spin = () => Promise.resolve().then(spin); spin(); await new Promise(() => {{}}); {HARMLESS}"
    ));
    assert!(text.contains("longer than 5 s"), "{text}");
}

#[test]
fn a_catastrophic_pattern_ends() {
    let text = fault("/^(a+)+$/.test('a'.repeat(40) + 'b');");
    assert!(text.contains("longer than 5 s"), "{text}");
}

#[test]
fn memory_is_bounded() {
    // PLAN_MEMORY_BYTES_MAX
    for greed in [
        "'x'.repeat(2 ** 29).concat('y'); const a = []; for (;;) a.push('x'.repeat(2 ** 20) + a.length)",
        "new Uint8Array(2 ** 30)",
        "const a = []; for (;;) a.push({})",
    ] {
        let text = fault(greed);
        assert!(text.contains("more than 64 MiB of memory"), "{greed}: {text}");
    }
    let fits = format!("const a = new Uint8Array(48 * 1024 * 1024); {HARMLESS}");
    assert!(evaluate_one(&fits).is_ok());
}

#[test]
fn recursion_is_bounded() {
    // STACK_BYTES_MAX
    let text = fault("const f = (n) => f(n + 1) + 1; f(0);");
    assert!(text.contains("stack"), "{text}");
    assert!(text.starts_with(".shuntyard/workflows/w.ts:3:"), "{text}");
    let nested = format!("const deep = {}1{};", "[".repeat(20_000), "]".repeat(20_000));
    let error = evaluate_one(&nested).unwrap_err().to_string();
    assert!(error.contains("nested") || error.contains("stack"), "{error}");
}

#[test]
fn a_promise_that_never_settles_is_noticed() {
    let text = fault("await new Promise(() => {});");
    assert!(text.contains("a top-level await waits for something that never happens"), "{text}");
}

#[test]
fn output_is_bounded() {
    let text = fault(
        "const line = 'x'.repeat(2 ** 20); for (let i = 0; i < 100; i += 1) console.log(line);",
    );
    assert!(text.contains("printed more than 5 MiB"), "{text}");
    let text = fault(
        "try { const line = 'x'.repeat(2 ** 20); for (let i = 0; i < 100; i += 1) console.log(line); } catch {} throw new Error('after');",
    );
    assert!(text.contains("printed more than 5 MiB"), "{text}");
    let fits = format!("console.log('x'.repeat({})); {HARMLESS}", PLAN_OUTPUT_BYTES_MAX - 1);
    assert_eq!(evaluate_one(&fits).unwrap().console.len(), PLAN_OUTPUT_BYTES_MAX);
}

#[test]
fn a_plan_is_bounded() {
    let text = fault(
        "const env = { A: 'x'.repeat(3 * 2 ** 20) }; const big = (n) => job(n, { env, run: sh('x') }); export default workflow('w', { jobs: [big('a'), big('b')] });",
    );
    assert!(text.contains("the plan is larger than 5 MiB"), "{text}");
}

#[test]
fn options_that_contain_themselves_or_have_no_end_are_refused() {
    let text = fault(
        "const env = {}; env.self = env; export default workflow('w', { jobs: [job({ env, run: sh('x') })] });",
    );
    assert!(text.contains("contain themselves"), "{text}");
    // VALUES_MAX
    let text = fault(
        "const many = new Array(100000).fill('x'); export default workflow('w', { jobs: [job({ needs: many, run: sh('x') })] });",
    );
    assert!(text.contains("more than 100000 values"), "{text}");
    let text = fault("export default workflow('w', { get jobs() { for (;;) [].at(0); } });");
    assert!(text.contains("longer than 5 s"), "{text}");
}

#[test]
fn a_getter_that_throws_is_a_fault() {
    let text =
        fault("export default workflow('w', { get jobs() { throw new RangeError('gotcha'); } });");
    assert!(text.contains("reading an option failed: RangeError: gotcha"), "{text}");
    assert!(text.starts_with(".shuntyard/workflows/w.ts:3:"), "{text}");
    for thrown in [
        "null",
        "undefined",
        "5",
        "'text'",
        "Symbol('x')",
        "new Proxy({}, { get() { throw 1; } })",
        "Object.create(null)",
        "{ get message() { throw 2; } }",
    ] {
        let text = fault(&format!("throw {thrown};"));
        assert!(text.contains("thrown") || text.contains("memory"), "{thrown}: {text}");
    }
}

#[test]
fn a_polluted_world_does_not_change_the_plan() {
    let evil = "
        Object.prototype.toJSON = () => 'evil'; Object.prototype.kind = 'workflow'; Object.prototype.timeout = 5;
        Array.prototype.map = Array.prototype.push = Array.prototype[Symbol.iterator] = () => { throw new Error('evil'); };
        Function.prototype.call = Function.prototype.apply = () => { throw new Error('evil'); };
        JSON.stringify = JSON.parse = Object.keys = Reflect.ownKeys = Reflect.get = Reflect.apply = () => 'evil';
        RegExp.prototype.exec = RegExp.prototype.test = () => true;
        Object.defineProperty(RegExp.prototype, 'source', { get: () => 'evil' });
        String.prototype.toString = Promise.prototype.then = WeakMap.prototype.get = Map.prototype.get = () => 'evil';
        globalThis.Error = globalThis.Array = globalThis.Object = globalThis.Promise = undefined;";
    let body =
        "export default workflow('w', { jobs: [job('j', { runsOn: /^x$/, run: sh('x') })] });";
    let (clean, polluted) = (evaluate_one(body).unwrap(), evaluate_one(&format!("{evil}\n{body}")));
    let polluted = polluted.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(clean.plan.workflows, polluted.plan.workflows);
}

#[test]
fn stacks_cannot_be_forged_to_break_the_host() {
    let text = fault(
        "try { Error.prepareStackTrace = () => ({ evil: 1 }); } catch {} try { Error.stackTraceLimit = 0; } catch {} job('x'); export default workflow('w', { jobs: [job('j', { nope: 1, run: sh('x') })] });",
    );
    assert!(text.contains("has no option \"nope\""), "{text}");
    let text = fault(
        "const e = new Error('x'); e.stack = 'at f (.shuntyard/workflows/w.ts:99999999999:1)\\nat (((:1:1'; throw e;",
    );
    assert!(text.contains("Error: x"), "{text}");
}

#[test]
fn a_missing_program_is_an_error_of_this_machine() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let launcher = shuntyard_script::Launcher { program: "/nonexistent".into(), args: Vec::new() };
    let result = runtime.block_on(shuntyard_script::evaluate(
        &launcher,
        &crate::bundle(&[]),
        crate::NOW,
        shuntyard_script::Require::Walls,
    ));
    assert!(matches!(result, Err(EvaluateError::Spawn { .. })));
    let silent = shuntyard_script::Launcher { program: "/bin/true".into(), args: Vec::new() };
    let result = runtime.block_on(shuntyard_script::evaluate(
        &silent,
        &crate::bundle(&[]),
        crate::NOW,
        shuntyard_script::Require::Walls,
    ));
    assert!(matches!(result, Err(EvaluateError::Died { .. })));
}

/// Planned with `fits`, refused with one more and these words.
fn edge(body: impl Fn(usize) -> String, limit: usize, words: &str) {
    let fits = evaluate_one(&body(limit));
    assert!(fits.is_ok(), "{limit}: {}", fits.unwrap_err());
    let text = fault(&body(limit + 1));
    assert!(text.contains(words), "{text}");
}

fn one_job(options: &str) -> String {
    format!("export default workflow('w', {{ jobs: [job('j', {options})] }});")
}

#[test]
fn plans_are_bounded_at_every_edge() {
    let repeat =
        |what: &str, count: usize| format!("Array.from({{ length: {count} }}, (_, i) => {what})");
    let jobs = |count| {
        format!(
            "export default workflow('w', {{ jobs: {} }});",
            repeat("job({ run: sh('x') })", count)
        )
    };
    // JOBS_MAX
    edge(jobs, 1000, "\"jobs\" holds 1 to 1000 jobs, got 1001");
    let steps = |count| one_job(&format!("{{ steps: {} }}", repeat("sh('x')", count)));
    // STEPS_MAX
    edge(steps, 1000, "\"steps\" holds 1 to 1000 steps, got 1001");
    // AXIS_VALUES_MAX
    let axis = |count| one_job(&format!("{{ run: sh('x'), matrix: {} }}", repeat("i", count)));
    edge(axis, 256, "\"matrix\" holds 1 to 256 values, got 257");
    // COMMAND_BYTES_MAX
    let command = |bytes| one_job(&format!("{{ run: sh('x'.repeat({bytes})) }}"));
    edge(command, 65_536, "a command has 1 to 65536 bytes");
    // TRIES_MAX
    let tries = |count| one_job(&format!("{{ run: sh('x'), retry: {count} }}"));
    edge(tries, 100, "\"retry\" is a whole number from 1 to 100, got 101");
    // NAME_CHARS_MAX
    let name = |chars: usize| {
        let name = "ü".repeat(chars);
        format!("export default workflow('w', {{ jobs: [job('{name}', {{ run: sh('x') }})] }});")
    };
    edge(name, 100, "has 1 to 100 characters, this one has 101");
    let priority = |value| one_job(&format!("{{ run: sh('x'), priority: {value} }}"));
    edge(priority, 100, "\"priority\" is a whole number from -100 to 100, got 101");
    // CHECKOUT_DEPTH_MAX
    let depth = |commits| one_job(&format!("{{ run: sh('x'), checkout: {{ depth: {commits} }} }}"));
    edge(depth, 1_000_000, "a whole number from 0 to 1000000, got 1000001");
    // PARALLEL_MAX
    let parallel = |at_once| {
        one_job(&format!("{{ steps: [parallel([sh('x')], {{ maxParallel: {at_once} }})] }}"))
    };
    edge(parallel, 256, "a whole number from 1 to 256, got 257");
    // SCHEMA_DEPTH_MAX
    let schema = |levels: usize| {
        let (open, close) = ("z.array(".repeat(levels - 1), ")".repeat(levels - 1));
        one_job(&format!(
            "{{ run: step('s', {{ outputs: {{ a: {open}z.string(){close} }}, run: async () => ({{}}) }}) }}"
        ))
    };
    edge(schema, 16, "nested deeper than 16 levels");
    // DEPTH_MAX: the options and the matrix are two of the 32 levels.
    let deep = |depth: usize| {
        format!("const o = {}1{};", "{ a: ".repeat(depth), " }".repeat(depth))
            + &one_job("{ run: sh('x'), matrix: o }")
    };
    assert!(fault(&deep(30)).contains("\"matrix.a\" is a list of values"));
    assert!(fault(&deep(31)).contains("nested deeper than 32 levels"));
}

#[test]
fn a_long_message_is_cut() {
    // MESSAGE_BYTES_MAX
    let room = 16 * 1024 - "Error: ".len();
    let thrown = |bytes: usize| fault(&format!("throw new Error('q'.repeat({bytes}));"));
    assert!(thrown(room).contains(&"q".repeat(room)));
    let cut = thrown(room + 1);
    assert!(cut.contains(&format!("{}…", "q".repeat(room))));
    assert!(!cut.contains(&"q".repeat(room + 1)));
}

#[test]
fn a_pattern_that_is_too_large_is_refused() {
    // REGEX_BYTES_MAX is the size of the compiled pattern.
    let pattern =
        |count: usize| one_job(&format!("{{ run: sh('x'), runsOn: /^[a-z]{{{count}}}$/ }}"));
    assert!(evaluate_one(&pattern(100)).is_ok());
    assert!(!fault(&pattern(100_000)).is_empty());
}

#[test]
fn only_so_many_faults_are_reported() {
    let text =
        fault("export default workflow('w', { jobs: Array.from({ length: 60 }, () => job({})) });");
    assert_eq!(text.matches("has nothing to do").count(), shuntyard_script::FAULTS_MAX);
}
