import { job, pr, push, sh, step, workflow } from 'shuntyard';

const test = job('test', {
  timeout: '10m',
  steps: [
    step('versions', async ({ $ }) => {
      const node = await $`node --version`;
      return { node: node.text() };
    }),
    sh('test', 'node --test'),
  ],
});

const pack = job('pack', {
  needs: [test],
  steps: [
    sh('pack', 'npm pack --offline --ignore-scripts'),
    step('look inside', async ({ $, needs, log }) => {
      const files = await $`tar -tzf slug-1.0.0.tgz`;
      log.info(`tested with ${needs.test.outputs.versions.node}: ${files.lines().length} files`);
    }),
  ],
});

export default workflow('ci', { on: [push(), pr()], jobs: [test, pack] });
