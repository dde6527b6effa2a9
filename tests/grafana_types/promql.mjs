// PromQL from standard input, a JSON list of expressions in; the ones that Prometheus' own grammar for editors cannot read out.
import { readFileSync } from 'node:fs';
import { parser } from '@prometheus-io/lezer-promql';

const broken = [];
for (const expression of JSON.parse(readFileSync(0, 'utf8'))) {
  const cursor = parser.parse(expression).cursor();
  do {
    if (cursor.type.isError) {
      broken.push({ expression, at: cursor.from });
      break;
    }
  } while (cursor.next());
}
process.stdout.write(JSON.stringify(broken));
