import { job, push, pr, sh, step, workflow } from 'shuntyard';

// Runs for every push and pull request. `shunt run` tries it on this machine.
const test = job('test', {
  steps: [
    sh('show', 'ls'),
    step('say', async ({ log, event }) => {
      log.info(`commit ${event.commit}`);
    }),
    // Replace this with the command that tests your code:
    sh('test', 'echo "all tests pass"'),
  ],
});

export default workflow('ci', { on: [push(), pr()], jobs: [test] });
