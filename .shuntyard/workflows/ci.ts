import { job, pr, push, sh, workflow } from 'shuntyard';

// Shuntyard tests itself: `shunt run` does the same on a laptop.
const test = job('test', {
  timeout: '1h',
  steps: [sh('test', 'cargo xtask test')],
});

export default workflow('ci', {
  on: [push({ branches: ['main'] }), pr()],
  jobs: [test],
});
