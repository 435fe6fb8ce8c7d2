import { job, pr, push, sh, step, workflow } from 'shuntyard';

const offline = { CARGO_NET_OFFLINE: 'true' };

const test = job('test', {
  env: offline,
  timeout: '15m',
  steps: [sh('build', 'cargo build --locked'), sh('test', 'cargo test --locked')],
});

const release = job('release', {
  needs: [test],
  env: offline,
  timeout: '15m',
  steps: [
    sh('build', 'cargo build --release --locked'),
    step('try it', async ({ $, log }) => {
      const year = await $`./target/release/roman 2026`;
      if (year.text() !== 'MMXXVI') throw new Error(`got ${year.text()}`);
      log.info(`2026 is ${year.text()}`);
      return { numeral: year.text() };
    }),
  ],
});

export default workflow('ci', { on: [push(), pr()], jobs: [test, release] });
