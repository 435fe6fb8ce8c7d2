import { job, pr, push, sh, step, workflow } from 'shuntyard';
import { web } from '../paths';

const test = job('test', {
  steps: [sh('test', 'python3 -m unittest', { cwd: 'web' })],
});

const build = job('build', {
  needs: [test],
  steps: [
    sh('page', 'mkdir -p dist && python3 web/page.py > dist/index.html'),
    step('check', async ({ $ }) => {
      const html = await $`cat dist/index.html`;
      if (!html.stdout.includes('<title>Status</title>')) throw new Error('the page has no title');
    }),
  ],
});

export default workflow('web', {
  on: [push({ paths: web }), pr({ paths: web })],
  jobs: [test, build],
});
