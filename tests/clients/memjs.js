// memjs, which speaks the binary protocol only; with a user and a password if they are given.
const assert = require('node:assert');
const memjs = require('memjs');

const [address, username, password] = process.argv.slice(2);
const cache = memjs.Client.create(address, { username, password, retries: 0, timeout: 10 });

async function main() {
  await cache.flush();
  assert.strictEqual((await cache.get('a')).value, null);
  assert.strictEqual(await cache.set('a', 'value', { expires: 100 }), true);
  assert.strictEqual((await cache.get('a')).value.toString(), 'value');
  assert.strictEqual(await cache.add('a', 'other', {}), false);
  assert.strictEqual(await cache.replace('none', 'other', {}), false);
  assert.strictEqual(await cache.replace('a', 'ab', {}), true);
  // Its prepend sends an append.
  assert.strictEqual(await cache.append('a', 'c'), true);
  assert.strictEqual((await cache.get('a')).value.toString(), 'abc');
  assert.strictEqual((await cache.increment('n', 5, { initial: 10 })).value, 10);
  assert.strictEqual((await cache.increment('n', 5, {})).value, 15);
  assert.strictEqual((await cache.decrement('n', 1, {})).value, 14);
  assert.strictEqual(await cache.touch('a', 1000), true);
  assert.strictEqual(await cache.touch('none', 1000), false);
  const large = Buffer.alloc(500000, 'pumice ');
  assert.strictEqual(await cache.set('large', large, {}), true);
  assert.ok((await cache.get('large')).value.equals(large));
  await Promise.all(Array.from({ length: 300 }, (_, i) => cache.set(`k${i}`, `value ${i}`, {})));
  const got = await Promise.all(Array.from({ length: 300 }, (_, i) => cache.get(`k${i}`)));
  got.forEach((reply, i) => assert.strictEqual(reply.value.toString(), `value ${i}`));
  assert.strictEqual(await cache.delete('a'), true);
  assert.strictEqual(await cache.delete('a'), false);
  const [{ stats }] = [await new Promise((resolve, reject) => cache.stats((error, server, stats) => error ? reject(error) : resolve({ stats })))];
  assert.ok('curr_items' in stats);
  await cache.quit();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
