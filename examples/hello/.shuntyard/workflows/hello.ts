// A first workflow. Every push runs it; `shunt dev examples/hello` runs it right now.
import { job, manual, push, sh, step, workflow, z } from 'shuntyard';

// A job is a list of steps. A step is a command …
const check = job('check', {
  steps: [
    sh('show the guests', 'sort guests.txt'),

    // … or a function. What it returns are its outputs; later jobs can read them.
    step('count', {
      outputs: z.object({ guests: z.number().int().min(1), first: z.string() }),
      run: async ({ $, log }) => {
        const names = (await $`sort guests.txt`.quiet()).lines();
        log(`${names.length} guests are invited`);
        return { guests: names.length, first: names[0] };
      },
    }),
  ],
});

// A matrix runs a job once per value. `needs` says what comes first.
const greet = job('greet', {
  needs: check,
  matrix: { language: ['en', 'fr'], loud: [false, true] },
  exclude: [{ language: 'fr', loud: true }],
  run: async ({ $, matrix }) => {
    // Values in a command are quoted by themselves, whatever is in them.
    const guest = check.result.count.first;
    await $`sh ./greet.sh ${matrix.language} ${guest}`;
    if (matrix.loud) await $`echo ${'HOORAY!'}`;
  },
});

// Runs when all greetings are done, and says how it went.
const farewell = job('farewell', {
  needs: [check, { job: greet, when: 'always' }],
  run: async ({ log, needs }) => {
    log(`greeting ${check.result.count.guests} guests: ${needs.greet.outcome}`);
  },
});

export default workflow('hello', {
  description: 'Greets the guests, in two languages',
  on: [push(), manual()],
  jobs: [check, greet, farewell],
});
