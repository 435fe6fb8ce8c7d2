// Types of the module "shuntyard", for editors. The module itself is built into `shunt`;
// nothing has to be installed. `shunt init` writes this file to `.shuntyard/shuntyard.d.ts`.

declare module 'shuntyard' {
  /** `"90s"`, `"10m"`, `"1h30m"`, or a number of milliseconds. At most 24 days. */
  export type Duration = string | number;

  /** How a job ended. */
  export type Outcome = 'success' | 'failed' | 'timed_out' | 'cancelled' | 'skipped' | 'lost';

  /** Variables; numbers and booleans are written out. */
  export type Env = Record<string, string | number | boolean>;

  /** Anything that JSON can say. */
  export type Json = null | boolean | number | string | Json[] | { [key: string]: Json | undefined };

  // ---------------------------------------------------------------- workflows

  /** A workflow: export it, by any name or as the default, and it counts. */
  export interface Workflow {
    readonly __kind: 'workflow';
  }

  export interface WorkflowOptions {
    /** What starts a run; any of several. Without it, runs are only started by hand. */
    on?: Trigger | Trigger[];
    /** The jobs; their order says nothing, `needs` does. */
    jobs: Job<any>[];
    /** For people. */
    description?: string;
    /** Variables of every job. */
    env?: Env;
    /** Limit for the whole run, from its start. */
    timeout?: Duration;
    /** A run waits for a slot of the group before anything of it starts, and keeps it until it has ended. */
    concurrency?: Concurrency;
  }

  /**
   * A concurrency group: at most `max` of its members are under way, the others wait in the order in
   * which their deliveries came. It belongs to the repository; `org:` before the name shares it
   * with every repository of the org.
   */
  export type Concurrency =
    | string
    | {
        group: string;
        /** Cancels the older members that there is no room for beside the newest. Default false. */
        cancelInProgress?: boolean;
        /** Slots. Default 1. */
        max?: number;
      };

  /**
   * Declares a workflow. Its name is unique in the repository.
   *
   * ```ts
   * export default workflow('ci', { on: push(), jobs: [job('test', { run: sh('make test') })] });
   * ```
   */
  export function workflow(name: string, options: WorkflowOptions): Workflow;

  // ----------------------------------------------------------------- triggers

  /** What starts a run. Patterns are globs, read in order: `!x` takes away, a later one gives back. */
  export interface Trigger {
    readonly __kind: 'trigger';
  }

  /** A push to a branch; to tags only with `tags`. */
  export function push(options?: {
    branches?: string | string[];
    tags?: string | string[];
    /** Only when one of the changed files matches. */
    paths?: string | string[];
  }): Trigger;

  /** A pull request: opened, synchronize or reopened, unless `events` says otherwise. */
  export function pr(options?: {
    /** The branch that it wants to change. */
    target?: string | string[];
    /** The branch that it comes from. */
    source?: string | string[];
    events?: string | string[];
    paths?: string | string[];
  }): Trigger;

  /** A new tag: `tag('v*')`. */
  export function tag(patterns?: string | string[] | { tags?: string | string[]; patterns?: string | string[] }): Trigger;

  /** Started by a person or through the API. */
  export function manual(): Trigger;

  /** By the clock: five cron fields, UTC unless `timezone` names another zone. */
  export function schedule(cron: string | { cron: string; timezone?: string }): Trigger;

  // --------------------------------------------------------------------- jobs

  /** A job. `result` holds the outputs of its steps, inside step functions of jobs that need it. */
  export interface Job<Result = Record<string, any>> {
    readonly __kind: 'job';
    /** By step name, or flat for a job with `run`. Exists only while a run is under way. */
    readonly result: Result;
  }

  /** One upstream: a job, its name, or either with the outcomes that let this job go on. */
  export type Need = Job<any> | string | { job: Job<any> | string; when?: When } | { name: string; when?: When };

  /**
   * `on-success` (default), `always`, `on-skip` (success or skipped), `on-failure` (failed, lost or
   * timed out), or a list of outcomes.
   */
  export type When = 'on-success' | 'always' | 'on-skip' | 'on-failure' | Outcome | Outcome[];

  /** A label, a glob, or a regular expression (without look-around and back-references). */
  export type Selector = string | RegExp;

  export type MatrixValue = string | number | boolean;

  export interface JobOptions {
    /** Labels that an agent must have, all of them. Any agent without it. */
    runsOn?: Selector | Selector[] | { labels?: Selector | Selector[]; exclude?: Selector | Selector[] };
    /** Jobs that come first. */
    needs?: Need | Need[];
    /** One run of the job per value or combination; `ctx.matrix` has it. A list gives `ctx.matrix.value`. */
    matrix?: MatrixValue[] | Record<string, MatrixValue[]>;
    /** Extends matching combinations, or adds new ones. */
    include?: Record<string, MatrixValue>[];
    /** Takes away the combinations that match all keys of an entry. */
    exclude?: Record<string, MatrixValue>[];
    /** Most combinations that run at the same time. */
    maxParallel?: number;
    /** Cancels the others when one combination fails. */
    failFast?: boolean;
    env?: Env;
    /** Whether and how the source is checked out. Default: the commit alone. */
    checkout?: boolean | { /** Commits of history; 0 is all. */ depth?: number; submodules?: boolean };
    /** Per try; six hours without it. */
    timeout?: Duration;
    /** Between asking commands to end and killing them, when the job is cancelled. Default 30 s. */
    gracePeriod?: Duration;
    /** Tries in all; on failed, timed_out and lost unless `on` says less. */
    retry?: number | { maxAttempts: number; on?: Outcome | Outcome[] };
    /**
     * The job waits for a slot of the group when it is ready, without taking an agent, and keeps it
     * until it has ended, all tries included. Each combination of a matrix takes one.
     */
    concurrencyGroup?: Concurrency;
    /** The same as `concurrencyGroup`. */
    concurrency?: Concurrency;
    /** A failure does not fail the run, and counts as success for `needs`. */
    continueOnError?: boolean;
    /** −100 … 100; higher goes first. */
    priority?: number;
  }

  /** The outputs of a list of steps, by step name. */
  export type StepResults<Steps> = Steps extends readonly (infer One)[]
    ? { [S in One as S extends Step<infer Name, any> ? (string extends Name ? never : Name) : never]: S extends Step<any, infer Out> ? Out : never }
    : Record<string, any>;

  /** What may stand in `steps`. */
  export type AnyStep = Step<any, any> | StepFunction<any> | ParallelBlock;

  /**
   * Declares a job: `steps` in order, or `run` for a single one whose outputs are flat.
   *
   * ```ts
   * const test = job('test', { runsOn: 'linux', needs: build, steps: [sh('make test')] });
   * ```
   */
  export function job<const Steps extends readonly AnyStep[]>(
    name: string,
    options: JobOptions & { steps: Steps },
  ): Job<StepResults<Steps>>;
  export function job<Out>(name: string, options: JobOptions & { run: StepFunction<Out> | Step<any, Out> }): Job<Out>;
  /** Without a name: `job-1`, `job-2` and so on. */
  export function job<const Steps extends readonly AnyStep[]>(options: JobOptions & { steps: Steps }): Job<StepResults<Steps>>;
  export function job<Out>(options: JobOptions & { run: StepFunction<Out> | Step<any, Out> }): Job<Out>;

  // -------------------------------------------------------------------- steps

  /** A step. `result` holds its outputs, inside later step functions of the same job. */
  export interface Step<Name extends string = string, Out = any> {
    readonly __kind: 'step';
    readonly __name?: Name;
    readonly result: Out;
  }

  /** What a step does. It returns its outputs, an object that JSON can say, or nothing. */
  export type StepFunction<Out = any> = (ctx: Ctx) => Out | Promise<Out>;

  export interface CommonStepOptions {
    /** Per try; none without it. */
    timeout?: Duration;
    /** Tries in all. The wait after try n is min(delayMs · 2^(n−1), maxDelayMs). */
    retry?:
      | number
      | {
          maxAttempts: number;
          /** Default 1000. */
          delayMs?: Duration;
          /** Default exponential. */
          backoff?: 'exponential' | 'fixed';
          /** Default 30000. */
          maxDelayMs?: Duration;
        };
    /** The job goes on when this step fails. */
    continueOnError?: boolean;
    env?: Env;
    /** What the outputs look like; checked when the step ends. */
    outputs?: Schema<any> | Record<string, Schema<any>>;
  }

  /** A step that is a function. */
  export function step<const Name extends string, Out>(name: Name, run: StepFunction<Out>): Step<Name, Out>;
  export function step<const Name extends string, Out>(
    name: Name,
    options: CommonStepOptions & { run: StepFunction<Out> },
  ): Step<Name, Out>;
  export function step<Out>(run: StepFunction<Out>): Step<string, Out>;

  export interface ShOptions extends CommonStepOptions {
    /** `bash` (default), `sh`, `pwsh`, or program and arguments before the command. */
    shell?: 'bash' | 'sh' | 'pwsh' | string[];
    /** A folder inside the workspace. */
    cwd?: string;
  }

  /** A step that is a command line, run by `bash -eo pipefail`. It needs no JavaScript at run time. */
  export function sh(command: string, options?: ShOptions): Step<string, Record<string, string>>;
  export function sh<const Name extends string>(
    name: Name,
    command: string,
    options?: ShOptions,
  ): Step<Name, Record<string, string>>;

  /** Steps that run at the same time; the next step waits for all of them. */
  export interface ParallelBlock {
    readonly __kind: 'parallel';
  }

  /** Runs steps at the same time. Blocks do not nest. */
  export function parallel(
    steps: (Step<any, any> | StepFunction<any>)[],
    options?: { /** Default true. */ failFast?: boolean; maxParallel?: number; name?: string },
  ): ParallelBlock;

  // ------------------------------------------------------------------ context

  /** The output of a command. Reading more than 8 MiB is an error; the log has all of it. */
  export interface CommandResult {
    readonly stdout: string;
    readonly stderr: string;
    /** 128 + n for signal n. */
    readonly exitCode: number;
    readonly signal: string | null;
    /** stdout without its last newline. */
    text(): string;
    lines(): string[];
    json(): any;
  }

  /** A command about to run: set options, then `await` it. */
  export interface Command extends Promise<CommandResult> {
    /** A bad exit code is no error. */
    nothrow(): Command;
    /** Output is captured but not logged. */
    quiet(): Command;
    /** Ends the command after this time, with an error. */
    timeout(limit: Duration): Command;
    text(): Promise<string>;
    lines(): Promise<string[]>;
    json(): Promise<any>;
  }

  export interface CommandOptions {
    cwd?: string;
    env?: Record<string, string>;
    nothrow?: boolean;
    quiet?: boolean;
    timeout?: Duration;
  }

  /** Prints lines to the step's log. */
  export interface Log {
    (...values: unknown[]): void;
    info(...values: unknown[]): void;
    warn(...values: unknown[]): void;
    error(...values: unknown[]): void;
    debug(...values: unknown[]): void;
  }

  /** Set when the step is stopped: cancelled, or out of time. */
  export interface StopSignal {
    readonly aborted: boolean;
    readonly reason: unknown;
    addEventListener(type: 'abort', listener: () => void): void;
    removeEventListener(type: 'abort', listener: () => void): void;
    throwIfAborted(): void;
  }

  /** What a step function gets. */
  export interface Ctx {
    /**
     * Runs a command: `` await $`cp ${from} ${to}` ``. Every value becomes exactly one word, a list
     * becomes words, a result its output; so nothing needs quotes. What is written stays as it is:
     * backslashes reach the shell.
     */
    $(strings: TemplateStringsArray, ...values: unknown[]): Command;
    /** Runs a command that is a string, unchanged. */
    sh(command: string, options?: CommandOptions): Command;
    readonly log: Log;
    readonly console: Omit<Log, never> & { log(...values: unknown[]): void };
    /** The environment of the step's commands. */
    readonly env: Readonly<Record<string, string>>;
    /** Sets a variable for later commands and steps of the job. */
    setEnv(name: string, value: string | number | boolean): void;
    /** Puts a folder before PATH, for later commands and steps of the job. */
    addPath(folder: string): void;
    /** The values of this run of a job with a matrix. */
    readonly matrix: any;
    /** The event that started the run. */
    readonly event: any;
    readonly inputs: any;
    readonly workflow: any;
    readonly job: any;
    readonly run: any;
    readonly agent: any;
    /** Number of the try, from 1. */
    readonly attempt: number;
    /** The jobs in `needs`, by name. */
    readonly needs: Record<string, { outcome: Outcome; outputs: any }>;
    /** Outputs of a step or a needed job, by its object or name. */
    outputsOf(what: Job<any> | Step<any, any> | string): any;
    readonly signal: StopSignal;
  }

  // ------------------------------------------------------------------ schemas

  /** What a value looks like. Methods return a new schema. */
  export interface Schema<T> {
    readonly __type?: T;
    /** May be missing. */
    optional(): Schema<T | undefined>;
    /** May be null. */
    nullable(): Schema<T | null>;
    /** Stands in when it is missing. */
    default(value: T): Schema<T>;
    /** Least value of a number, least length of a string or list. */
    min(value: number): Schema<T>;
    /** Greatest value of a number, greatest length of a string or list. */
    max(value: number): Schema<T>;
    /** A pattern for a string. */
    regex(pattern: RegExp): Schema<T>;
    /** A whole number. */
    int(): Schema<T>;
  }

  /** Builds schemas of outputs. */
  export const z: {
    string(): Schema<string>;
    number(): Schema<number>;
    boolean(): Schema<boolean>;
    literal<const T extends MatrixValue>(value: T): Schema<T>;
    enum<const T extends MatrixValue>(values: readonly T[]): Schema<T>;
    array<T>(items: Schema<T>): Schema<T[]>;
    object(properties: Record<string, Schema<any>>): Schema<any>;
    record<T>(values: Schema<T>): Schema<Record<string, T>>;
  };
}
