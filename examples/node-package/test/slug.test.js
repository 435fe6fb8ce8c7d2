import assert from 'node:assert/strict';
import { test } from 'node:test';
import { slug } from '../src/slug.js';

test('accents and spaces', () => assert.equal(slug('  Crème Brûlée! '), 'creme-brulee'));
test('nothing usable', () => assert.equal(slug('!?'), ''));
