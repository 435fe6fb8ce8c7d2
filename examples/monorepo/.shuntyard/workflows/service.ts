import { job, pr, push, step, workflow } from 'shuntyard';
import { service } from '../paths';

const test = job('test', {
  env: { CARGO_NET_OFFLINE: 'true' },
  matrix: { profile: ['dev', 'release'] },
  timeout: '15m',
  steps: [
    step('build and test', async ({ $, matrix }) => {
      await $`cd service && cargo test --locked --profile ${matrix.profile}`;
    }),
  ],
});

export default workflow('service', {
  on: [push({ paths: service }), pr({ paths: service })],
  jobs: [test],
});
